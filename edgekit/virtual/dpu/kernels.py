"""Accumulators of the linear operators, exact and vectorized. Tensors are int8 [N, C, H, W]; results are integers in float or int32."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgekit.tensors import Array


@dataclasses.dataclass(frozen=True)
class Window:
    """A sliding window: kernel, strides, dilations and pads (top, left, bottom, right)."""

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def plain(self) -> bool:
        """Whether every output reads one input position."""
        return self.kernel == (1, 1) and self.strides == (1, 1) and not any(self.pads)


def padded(values: Array, pads: tuple[int, int, int, int], fill: int = 0) -> Array:
    """The last two axes with a border."""
    import numpy as np

    if not any(pads):
        return values
    top, left, bottom, right = pads
    return np.pad(values, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)


def taps(values: Array, window: Window) -> Array:
    """A view [N, C, OH, OW, kh, kw] of padded values."""
    import numpy as np

    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.strides, window.dilations
    view = np.lib.stride_tricks.sliding_window_view(values, ((kh - 1) * dh + 1, (kw - 1) * dw + 1), axis=(2, 3))
    found: Array = view[:, :, ::sh, ::sw, ::dh, ::dw]
    return found


def conv(values: Array, weight: Array, window: Window, groups: int, dtype: Any) -> Array:
    """Sums of products [N, O, OH, OW] in `dtype`; `weight` is [O, C / groups, kh, kw] in `dtype`."""
    import numpy as np

    if groups == values.shape[1] and weight.shape[1] == 1:
        return depthwise(values, weight, window, dtype)
    if window.plain:
        columns, height, width = values.astype(dtype).reshape(*values.shape[:2], -1), values.shape[2], values.shape[3]
    else:
        view = taps(padded(values, window.pads), window)
        height, width = view.shape[2:4]
        columns = view.transpose(0, 1, 4, 5, 2, 3).astype(dtype, order="C").reshape(values.shape[0], -1, height * width)
    grouped = columns.reshape(values.shape[0], groups, -1, height * width)
    product = np.matmul(weight.reshape(groups, weight.shape[0] // groups, -1), grouped)
    found: Array = product.reshape(values.shape[0], weight.shape[0], height, width)
    return found


def depthwise(values: Array, weight: Array, window: Window, dtype: Any) -> Array:
    """Sums of products of one channel each; output channel o reads input channel o // multiplier."""
    import numpy as np

    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.strides, window.dilations
    source = padded(values, window.pads).astype(dtype)
    multiplier = weight.shape[0] // values.shape[1]
    if multiplier > 1:
        source = np.repeat(source, multiplier, axis=1)
    height = (source.shape[2] - (kh - 1) * dh - 1) // sh + 1
    width = (source.shape[3] - (kw - 1) * dw - 1) // sw + 1
    total = np.zeros((*source.shape[:2], height, width), dtype)
    product = np.empty(total.shape[1:], dtype)
    for image, sums in zip(source, total, strict=True):
        for i in range(kh):
            for j in range(kw):
                part = image[:, i * dh : i * dh + (height - 1) * sh + 1 : sh, j * dw : j * dw + (width - 1) * sw + 1 : sw]
                np.multiply(part, weight[:, 0, i, j, None, None], out=product)
                sums += product
    return total


def conv_transpose(values: Array, weight: Array, window: Window, groups: int, output_padding: tuple[int, int], dtype: Any) -> Array:
    """Sums of products [N, O, OH, OW] in `dtype`; `weight` is [C, O / groups, kh, kw] in `dtype`."""
    import numpy as np

    (kh, kw), (sh, sw), (dh, dw), (top, left, bottom, right) = window.kernel, window.strides, window.dilations, window.pads
    count, channels, rows, columns = values.shape
    outputs = weight.shape[1]
    spread = np.matmul(
        weight.reshape(groups, channels // groups, -1).transpose(0, 2, 1), values.astype(dtype).reshape(count, groups, channels // groups, -1)
    ).reshape(count, groups * outputs, kh, kw, rows, columns)
    height, width = (rows - 1) * sh + (kh - 1) * dh + 1 + output_padding[0], (columns - 1) * sw + (kw - 1) * dw + 1 + output_padding[1]
    total = np.zeros((count, groups * outputs, height, width), dtype)
    for i in range(kh):
        for j in range(kw):
            total[:, :, i * dh : i * dh + (rows - 1) * sh + 1 : sh, j * dw : j * dw + (columns - 1) * sw + 1 : sw] += spread[:, :, i, j]
    found: Array = total[:, :, top : height - bottom, left : width - right]
    return found


def weight_bound(weight: Array, outputs_axis: int = 0) -> int:
    """The largest magnitude that a sum of products of int8 values with an output's int8 weights can reach."""
    import numpy as np

    sums = np.abs(weight.astype(np.int64)).sum(axis=tuple(a for a in range(weight.ndim) if a != outputs_axis))
    return int(sums.max(initial=0)) * 128


def window_sum(values: Array, window: Window) -> Array:
    """Sums over each window, int32 (zeros in the border)."""
    import numpy as np

    source = padded(values, window.pads)
    if window.kernel == source.shape[2:]:
        whole: Array = source.sum(axis=(2, 3), dtype=np.int32, keepdims=True)
        return whole
    found: Array = taps(source, window).sum(axis=(4, 5), dtype=np.int32)
    return found


def window_max(values: Array, window: Window) -> Array:
    """The largest value of each window, int8 (the border is the lowest value)."""
    found: Array = taps(padded(values, window.pads, -128), window).max(axis=(4, 5))
    return found


def bilinear_double(values: Array, half_pixel: bool) -> Array:
    """Twice the height and width, times 16: int32. `half_pixel` weighs neighbors 3/4 and 1/4, otherwise (asymmetric) 1 or 1/2 and 1/2."""
    import numpy as np

    found = values.astype(np.int32)
    for axis in (2, 3):
        size = found.shape[axis]
        before, after = (np.take(found, np.clip(np.arange(size) + step, 0, size - 1), axis) for step in (-1, 1))
        even, odd = (3 * found + before, 3 * found + after) if half_pixel else (4 * found, 2 * found + 2 * after)
        found = np.stack((even, odd), axis=axis + 1).reshape(*found.shape[:axis], 2 * size, *found.shape[axis + 1 :])
    return found
