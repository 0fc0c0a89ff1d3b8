"""Integer grids: scale and zero point of a tensor, scales of a weight's channels, from ranges of real values."""

from __future__ import annotations

import dataclasses

from edgekit.tensors import Array

TINY = 1e-30
"""Keeps a scale positive where a tensor or channel is all zero."""


@dataclasses.dataclass(frozen=True)
class Affine:
    """A per-tensor grid: real = scale * (stored - zero_point), stored in [lowest, highest]."""

    scale: float
    zero_point: int
    lowest: int
    highest: int

    def round(self, real: Array) -> Array:
        """Real values moved to the nearest grid point inside the grid."""
        import numpy as np

        stored: Array = np.clip(np.rint(real / self.scale) + self.zero_point, self.lowest, self.highest)
        return (stored - self.zero_point) * self.scale


def affine(low: float, high: float, *, bits: int = 8, signed: bool = True, symmetric: bool = False) -> Affine:
    """The grid that covers [low, high] and holds zero exactly (Jacob et al. 2018, «Quantization and Training of Neural Networks for
    Efficient Integer-Arithmetic-Only Inference»).
    """
    import math

    low, high = min(low, 0.0), max(high, 0.0)
    lowest, highest = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if symmetric:
        middle = 0 if signed else 2 ** (bits - 1)
        scale = max(-low, high, TINY) / (2 ** (bits - 1) - 1)
        return Affine(scale, middle, lowest + (1 if signed else 0), highest)
    scale = max(high - low, TINY) / (2**bits - 1)
    return Affine(scale, int(min(max(lowest - math.floor(low / scale + 0.5), lowest), highest)), lowest, highest)


def weight_scales(weight: Array, *, bits: int = 8, block: int | None = None, floor: Array | float = TINY) -> Array:
    """Symmetric scales of a weight [outputs, k], one an output by its largest magnitude: float64 [outputs, k], ready to divide by.

    With `block` there is one for each `block` weights of an output. `floor` ([outputs, 1] or a number) is the smallest scale allowed: a
    channel whose weights are dead or nearly so must still leave room for its bias, which is stored in steps of input scale times weight
    scale. Raises `ValueError` where `block` does not divide k.
    """
    import numpy as np

    size = block or weight.shape[1]
    if weight.shape[1] % size:
        raise ValueError(f"blocks of {size} do not divide {weight.shape[1]} weights of an output")
    largest = np.abs(weight.reshape(len(weight), -1, size)).max(axis=2).astype(np.float64)
    scales = np.maximum(np.maximum(largest / (2 ** (bits - 1) - 1), TINY), floor)
    found: Array = np.repeat(scales, size, axis=1)
    return found


def nearest(weight: Array, scales: Array, *, bits: int = 8) -> Array:
    """Integers (as float64) of a weight on a symmetric grid, each rounded to nearest; the lowest value of the type stays unused."""
    import numpy as np

    limit = 2 ** (bits - 1) - 1
    found: Array = np.clip(np.rint(weight / scales), -limit, limit)
    return found
