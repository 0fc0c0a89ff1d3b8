"""The arithmetic of the accelerator: rounding shifts, saturation, and matrix products that stay exact.

A tensor has a position p: real = stored * 2^-p. Moving an accumulator of position a to a tensor of position p shifts right by a - p.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from edgekit.tensors import Array

Rounding = Literal["half_even", "half_up", "half_down", "std_round"]

ROUNDINGS: tuple[str, ...] = get_args(Rounding)
"""What a right shift does with a half. `half_even` is QuantizeLinear's rule, `half_up` (toward plus infinity) what AMD's quantizers give the
DPU's activations, `half_down` (toward minus infinity) and `std_round` (away from zero) the other rules those tools know
(vai_q_pytorch's quantization configuration: half_even, half_up, half_down, std_round)."""

LOWEST, HIGHEST = -128, 127

FRACTION_BITS = 24
"""Bits of float32's significand: beyond them a factor is no fraction of a power of two that it can hold."""

INT32_BITS = 31
"""Magnitude bits of an accumulator."""


def shift_right(values: Array, shift: int, rounding: Rounding) -> Array:
    """Integers divided by 2^shift (a negative shift multiplies), rounded; the dtype stays. The sum with half a step must not overflow."""
    if shift <= 0:
        found: Array = values << -shift
        return found
    half = 1 << (shift - 1)
    if rounding == "half_up":
        found = (values + half) >> shift
    elif rounding == "half_down":
        found = (values + (half - 1)) >> shift
    elif rounding == "std_round":
        found = (values + half - (values < 0)) >> shift
    else:
        found = (values + (half - 1) + ((values >> shift) & 1)) >> shift
    return found


def requantize(values: Array, shift: int, rounding: Rounding) -> Array:
    """Accumulators to int8: shifted right by `shift`, rounded, saturated to [-128, 127]."""
    import numpy as np

    if shift < 0:
        values = np.clip(values, LOWEST, HIGHEST)  # beyond it the shifted value saturates as well
    if shift > INT32_BITS - 1 or -shift > INT32_BITS - 8:
        values = values.astype(np.int64)
    shifted = shift_right(values, max(shift, -24), rounding) if shift < 63 else np.zeros_like(values)
    found: Array = np.clip(shifted, LOWEST, HIGHEST).astype(np.int8)
    return found


def accumulator_type(bound: int) -> Any:
    """int32 where a magnitude of `bound` fits, int64 otherwise (only activations that scale up an accumulator)."""
    import numpy as np

    return np.int32 if bound + 1 < 1 << INT32_BITS else np.int64


def product_type(bound: int) -> Any:
    """The float type whose matrix product is exact for integers whose products sum to at most `bound` in magnitude.

    Every partial sum is then an integer that the significand holds (24 or 53 bits), so no step rounds, in whatever order BLAS sums: this is
    integer arithmetic on the fastest unit numpy reaches.
    """
    import numpy as np

    return np.float32 if bound < 1 << 24 else np.float64


def position(scale: float) -> int | None:
    """The p of a scale 2^-p, None where the scale is not a power of two."""
    mantissa, exponent = math.frexp(scale) if math.isfinite(scale) and scale > 0 else (0.0, 0)
    return 1 - exponent if mantissa == 0.5 else None


def fraction(value: float) -> tuple[int, int] | None:
    """(k, n) with k / 2^n equal to `value` up to float32 rounding and n the smallest; None where there is none."""
    for bits in range(FRACTION_BITS + 1):
        scaled = value * 2**bits
        if abs(scaled - round(scaled)) <= abs(scaled) * 3e-7 and (round(scaled) or not value):
            return round(scaled), bits
    return None
