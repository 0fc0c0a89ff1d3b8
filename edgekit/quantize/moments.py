"""What a layer's rounding needs to know of its inputs: count, mean and second moment, gathered in a stream."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from edgekit.tensors import Array

DENSE = 2048
"""Most inputs whose second moments are kept as one matrix. The work on one grows by the cube: 9216 inputs took minutes, and gigabytes."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """A linear layer. `weight` is float [outputs, k] with k = inputs / groups * taps of the kernel; `bias` is float [outputs].

    Outputs are grouped in order: the first outputs / groups of them read the first group of inputs.
    """

    weight: Array
    bias: Array
    groups: int = 1

    @property
    def grouped(self) -> Array:
        """The weight as [groups, outputs / groups, k]."""
        return self.weight.reshape(self.groups, -1, self.weight.shape[1])


def to_matrix(weight: Array, axis: int) -> Array:
    """A stored weight, whose outputs lie along `axis`, as [outputs, k]."""
    import numpy as np

    moved = np.moveaxis(weight, axis, 0)
    return moved.reshape(moved.shape[0], -1)


def from_matrix(matrix: Array, shape: Sequence[int], axis: int) -> Array:
    """[outputs, k] back in the stored layout of `shape`."""
    import numpy as np

    rest = [size for index, size in enumerate(shape) if index != axis]
    return np.ascontiguousarray(np.moveaxis(matrix.reshape(matrix.shape[0], *rest), 0, axis))


def in_parts(values: Array, fill: float = 0.0) -> Array:
    """[groups, rows, k] as [groups * parts, rows, size], each part as many inputs that follow one another, at most `DENSE`; `fill` beyond k."""
    import numpy as np

    groups, rows, k = values.shape
    parts = -(-k // DENSE)
    if parts == 1:
        return values
    size = -(-k // parts)
    padded = np.pad(values, [(0, 0), (0, 0), (0, parts * size - k)], constant_values=fill)
    found: Array = padded.reshape(groups, rows, parts, size).transpose(0, 2, 1, 3).reshape(groups * parts, rows, size)
    return found


def from_parts(values: Array, groups: int, k: int) -> Array:
    """What `in_parts` made of [groups, rows, k]."""
    parts, rows, size = values.shape
    if parts == groups:
        return values
    found: Array = values.reshape(groups, -1, rows, size).transpose(0, 2, 1, 3).reshape(groups, rows, -1)[:, :, :k]
    return found


@dataclasses.dataclass(frozen=True)
class Moments:
    """Of a layer's input columns: `mean` is float64 [groups, k], `second` (E[x xT], not centered) float64 [groups, k, k].

    `cross` (E[w xT], float64 [groups, k, k]) relates what the float model reads at the same places, w, to x; None where that was not seen.
    Of more than `DENSE` inputs only those of one part are related: `second` and `cross` are [groups * parts, size, size], as `in_parts` has it.
    """

    count: int
    mean: Array
    second: Array
    cross: Array | None = None

    @functools.cached_property
    def covariance(self) -> Array:
        """Second moment about the mean, [groups, k, k]: what is left of an error once the bias absorbs its mean."""
        mean = in_parts(self.mean[:, None])
        found: Array = self.second - mean.transpose(0, 2, 1) * mean
        return found

    def drift(self, wanted: Array) -> Array | None:
        """Covariance of the float model's inputs (of mean `wanted` [groups, k]) with these, less these' own, [groups, k, k]."""
        if self.cross is None:
            return None
        apart = in_parts(wanted[:, None] - self.mean[:, None])
        found: Array = self.cross - self.second - apart.transpose(0, 2, 1) * in_parts(self.mean[:, None])
        return found


def moments(columns: Array, wanted: Array | None = None, *, second: bool = True) -> Moments:
    """Moments of columns [groups, samples, k]; `wanted`, of the same shape, are the float model's at the same places.

    Without `second` only the mean is computed, and the second moment is empty [groups, 0, 0]. Raises `ValueError` for no samples.
    """
    import numpy as np

    count = columns.shape[1]
    if count == 0:
        raise ValueError("moments of no samples")
    read = in_parts(columns) if second else columns[:, :, :0]
    square = np.matmul(read.transpose(0, 2, 1), read).astype(np.float64) / count
    if wanted is None or not second:
        return Moments(count, columns.mean(axis=1, dtype=np.float64), square)
    apart = np.matmul(in_parts(wanted - columns).transpose(0, 2, 1), read).astype(np.float64) / count  # alone: lost in the sum, where it is small
    return Moments(count, columns.mean(axis=1, dtype=np.float64), square, square + apart)


def merge(first: Moments | None, second: Moments) -> Moments:
    """Moments of both sets of columns together. The streaming form of an average, so that no columns need to be kept."""
    if first is None:
        return second
    count = first.count + second.count
    a, b = first.count / count, second.count / count
    cross = None if first.cross is None or second.cross is None else a * first.cross + b * second.cross
    return Moments(count, a * first.mean + b * second.mean, a * first.second + b * second.second, cross)
