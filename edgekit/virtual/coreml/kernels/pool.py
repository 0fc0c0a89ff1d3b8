"""Max, average and L2 pooling over 1 to 3 spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)

from edgekit.virtual.coreml.kernels.arguments import Tensor, flag, ints
from edgekit.virtual.coreml.kernels.conv import padded, spatial_pads

MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}

Window = tuple[list[int], list[int], list[tuple[int, int]], list[tuple[int, int]]]


def max_pool(x: Tensor, kernel_sizes: Any, pad_type: str = "valid", strides: Any = None, pad: Any = None, ceil_mode: Any = False) -> Tensor:
    """Largest value of each window; padding never wins."""
    kernel, stride, pads, extra = _window(x, kernel_sizes, pad_type, strides, pad, ceil_mode)
    return MAX[len(kernel)](padded(x, _both(pads, extra), float("-inf")), kernel, stride)


def avg_pool(
    x: Tensor,
    kernel_sizes: Any,
    pad_type: str = "valid",
    strides: Any = None,
    pad: Any = None,
    ceil_mode: Any = False,
    exclude_padding_from_average: Any = False,
) -> Tensor:
    """Mean of each window. Cells that only `ceil_mode` adds are never counted; padding is, unless it is excluded."""
    kernel, stride, pads, extra = _window(x, kernel_sizes, pad_type, strides, pad, ceil_mode)
    average = AVERAGE[len(kernel)]
    means = average(padded(x, _both(pads, extra)), kernel, stride)
    counted = extra if not flag(exclude_padding_from_average) else _both(pads, extra)
    if not any(before or after for before, after in counted):
        return means
    inner = x.new_ones([1, 1, *x.shape[2:]])
    if not flag(exclude_padding_from_average):
        inner = x.new_ones(padded(inner, pads).shape)
    return means / average(padded(inner, counted), kernel, stride)


def l2_pool(x: Tensor, kernel_sizes: Any, pad_type: str = "valid", strides: Any = None, pad: Any = None, ceil_mode: Any = False) -> Tensor:
    """Square root of each window's sum of squares."""
    kernel, stride, pads, extra = _window(x, kernel_sizes, pad_type, strides, pad, ceil_mode)
    cells = 1
    for size in kernel:
        cells *= size
    return torch.sqrt(AVERAGE[len(kernel)](padded(x.square(), _both(pads, extra)), kernel, stride) * cells)


def _window(x: Tensor, kernel_sizes: Any, pad_type: str, strides: Any, pad: Any, ceil_mode: Any) -> Window:
    kernel = ints(kernel_sizes)
    stride = [1] * len(kernel) if strides is None else ints(strides)
    pads = spatial_pads(pad_type, None if pad is None else ints(pad), x.shape[2:], kernel, stride)
    extra = [(0, 0)] * len(kernel)
    if flag(ceil_mode):
        extra = [(0, _ceil_extra(n, kernel[i], stride[i], pads[i])) for i, n in enumerate(x.shape[2:])]
    return kernel, stride, pads, extra


def _ceil_extra(size: int, kernel: int, stride: int, pads: tuple[int, int]) -> int:
    """Cells to add behind so that the last window is whole; a window that starts in the padding behind does not count."""
    before, after = pads
    total = size + before + after
    outputs = (total - kernel + stride - 1) // stride + 1
    if (outputs - 1) * stride >= size + before and before + after > 0:
        outputs -= 1
    return max((outputs - 1) * stride + kernel - total, 0)


def _both(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(a + c, b + d) for (a, b), (c, d) in zip(first, second, strict=True)]


OPERATORS = {"max_pool": max_pool, "avg_pool": avg_pool, "l2_pool": l2_pool}
