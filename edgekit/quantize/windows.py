"""What the kernel of a layer sees at some of its output positions."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgekit.tensors import Array

Pair = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Window:
    """Geometry of a convolution in two dimensions, each pair (height, width): `before` is padding in front, `out` the output's size.

    `spread` is the stride of a transposed convolution: the input's pixels lie that far apart, with zeros between them, and `before` may
    be anything that puts tap 0 on its pixel.
    """

    kernel: Pair
    stride: Pair
    dilation: Pair
    before: Pair
    out: Pair
    spread: Pair = (1, 1)


def patches(window: Window, values: Array, count: int, seed: int) -> Array:
    """float32 [samples, kernel height, kernel width, channels] of values [images, height, width, channels], zero beyond their edges.

    The same seed picks the same `count` positions (all of them where there are no more).
    """
    import numpy as np

    area = window.out[0] * window.out[1]
    image, place = np.divmod(pick(values.shape[0] * area, count, seed), area)
    rows, columns = (_taps(window, axis, np.divmod(place, window.out[1])[axis]) for axis in (0, 1))
    (row, row_known), (column, column_known) = (_inside(t, s, n) for t, s, n in zip((rows, columns), window.spread, values.shape[1:3], strict=True))
    found = values[image[:, None, None], row[:, :, None], column[:, None, :]]
    known = row_known[:, :, None] & column_known[:, None, :]
    made: Array = np.where(known[..., None], found, np.float32(0))
    return made


def by_group(found: Array, groups: int, *, channels_first: bool) -> Array:
    """Patches as columns [groups, samples, k]; k runs over channels, then taps, with `channels_first` (ONNX), else over taps, then channels."""
    import numpy as np

    samples, height, width, channels = found.shape
    split = found.reshape(samples, height * width, groups, channels // groups)
    order = (2, 0, 3, 1) if channels_first else (2, 0, 1, 3)
    return np.ascontiguousarray(split.transpose(order).reshape(groups, samples, -1))


def rows(values: Array, width: int, count: int, seed: int) -> Array:
    """What a dense layer reads: `count` rows of `width` values, [1, samples, width]. The same seed picks the same rows."""
    flat = values.reshape(-1, width)
    found: Array = flat[pick(flat.shape[0], count, seed)][None]
    return found


def pick(available: int, count: int, seed: int) -> Any:
    """`count` different numbers below `available`, ascending; all of them where there are no more."""
    import numpy as np

    return np.arange(available) if available <= count else np.sort(np.random.default_rng(seed).choice(available, count, replace=False))


def _taps(window: Window, axis: int, place: Any) -> Any:
    import numpy as np

    return (place * window.stride[axis] - window.before[axis])[:, None] + np.arange(window.kernel[axis]) * window.dilation[axis]


def _inside(taps: Any, spread: int, size: int) -> tuple[Any, Any]:
    import numpy as np

    index, between = np.divmod(taps, spread)
    return np.clip(index, 0, size - 1), (index >= 0) & (index < size) & (between == 0)
