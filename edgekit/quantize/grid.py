"""Integer grids: scale and zero point per tensor, per channel or per block, from a range of real values."""

from __future__ import annotations

import dataclasses
from typing import Literal

from edgekit.tensors import Array

Granularity = Literal["tensor", "channel", "block"]

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


def affine(low: float, high: float, *, bits: int = 8, signed: bool = True, symmetric: bool = False, power_of_two: bool = False) -> Affine:
    """The grid that covers [low, high] and holds zero exactly (Jacob et al. 2018, «Quantization and Training of Neural Networks for
    Efficient Integer-Arithmetic-Only Inference»). A power-of-two scale is the next larger power, so that nothing is clipped.
    """
    import math

    low, high = min(low, 0.0), max(high, 0.0)
    lowest, highest = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if symmetric:
        middle = 0 if signed else 2 ** (bits - 1)
        scale = max(-low, high, TINY) / (2 ** (bits - 1) - 1)
        return Affine(next_power_of_two(scale) if power_of_two else scale, middle, lowest + (1 if signed else 0), highest)
    scale = max(high - low, TINY) / (2**bits - 1)
    scale = next_power_of_two(scale) if power_of_two else scale
    return Affine(scale, int(min(max(lowest - math.floor(low / scale + 0.5), lowest), highest)), lowest, highest)


def next_power_of_two(value: float) -> float:
    """The smallest power of two that is not below `value` (> 0)."""
    import math

    mantissa, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def weight_scales(
    weight: Array, *, bits: int = 8, granularity: Granularity = "channel", block: int = 32, power_of_two: bool = False, floor: Array | float = TINY
) -> Array:
    """Symmetric scales of a weight [outputs, k] by its largest magnitude: float64 [outputs, k], ready to divide by.

    `floor` ([outputs, 1] or a number) is the smallest scale allowed: a channel whose weights are dead or nearly so must still leave
    room for its bias, which is stored in steps of input scale times weight scale. Raises `ValueError` where `block` does not divide k.
    """
    import numpy as np

    outputs, k = weight.shape
    if granularity == "block" and k % block:
        raise ValueError(f"blocks of {block} do not divide {k} weights of an output")
    shape = {"tensor": (1, 1, -1), "channel": (outputs, 1, k), "block": (outputs, -1, block)}[granularity]
    largest = np.abs(weight.reshape(shape)).max(axis=2).astype(np.float64)
    scales = np.maximum(largest / (2 ** (bits - 1) - 1), TINY)
    scales = np.repeat(np.broadcast_to(scales, (outputs, scales.shape[1])), k // scales.shape[1], axis=1)
    scales = np.maximum(scales, floor)
    found: Array = np.exp2(np.ceil(np.log2(scales) - 1e-9)) if power_of_two else scales
    return found


def nearest(weight: Array, scales: Array, *, bits: int = 8) -> Array:
    """Integers (as float64) of a weight on a symmetric grid, each rounded to nearest; the lowest value of the type stays unused."""
    import numpy as np

    limit = 2 ** (bits - 1) - 1
    found: Array = np.clip(np.rint(weight / scales), -limit, limit)
    return found
