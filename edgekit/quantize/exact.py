"""Scales of a dense layer's weights with which every runtime gives the same integers, whether it multiplies in fixed point or in double precision.

A layer's accumulators are multiplied by M = input scale * weight scale / output scale. Where M has 31 bits and is rounded twice (TFLM, CMSIS-NN),
results part from those of a double (LiteRT's reference kernel for a scale for each channel) only just below a half. With M slightly above
1 / N, N even, halves fall on accumulators themselves, and their neighbors are rounded alike. Nothing is assumed: a scale is taken only after
both ways were compared on either side of every step of the output.
"""

from __future__ import annotations

import math
from typing import Any

from edgekit.tensors import Array

WORST = 0.25
"""Largest relative change of a scale that is looked for."""
NEAREST = 500
"""Even numbers tried on either side of 1 / M."""
ROUND_OFF = 1e-15


def quantized_multiplier(real: float) -> tuple[int, int]:
    """A positive factor as 31 bits and an exponent: real = bits * 2^(exponent - 31) (LiteRT, `QuantizeMultiplier`)."""
    fraction, exponent = math.frexp(real)
    bits = math.floor(fraction * 2**31 + 0.5)
    if bits == 2**31:
        bits, exponent = bits // 2, exponent + 1
    return (0, 0) if exponent < -31 else (bits, exponent)


def fixed_point(accumulators: Array, real: float) -> Array:
    """int64 accumulators times a factor in 31 bits, rounded twice (gemmlowp's `SaturatingRoundingDoublingHighMul`, `RoundingDivideByPOT`)."""
    import numpy as np

    bits, exponent = quantized_multiplier(real)
    product = accumulators * (1 << max(exponent, 0)) * np.int64(bits)
    high = (product + (1 << 30)) >> 31  # halves go up, also below zero: the same as truncating behind gemmlowp's nudge
    right = max(-exponent, 0)
    if not right:
        return high
    left = high & ((1 << right) - 1)
    found: Array = (high >> right) + (left > (((1 << right) - 1) >> 1) + (high < 0))
    return found


def in_double(accumulators: Array, real: float) -> Array:
    """int64 accumulators times a factor in double precision, rounded once, halves away from zero (C's `round`)."""
    import numpy as np

    product = accumulators.astype(np.float64) * real
    whole = np.floor(np.abs(product))
    found: Array = (np.sign(product) * (whole + (np.abs(product) - whole >= 0.5))).astype(np.int64)
    return found


def agree(real: float, low: int, high: int, reach: float) -> bool:
    """Whether both give the same for every accumulator of -`reach` to `reach`, where results beyond `low` to `high` are clamped.

    Both never fall as the accumulator grows: the same on either side of where each result begins is the same everywhere.
    """
    import numpy as np

    if not 0 < real < 1:
        return False
    starts = np.floor((np.arange(low, high + 2, dtype=np.float64) - 0.5) / real)
    near = np.concatenate([*(starts + beside for beside in (-1, 0, 1, 2)), [-reach, reach]])
    near = near[np.abs(near) <= reach].astype(np.int64)
    return bool((np.clip(fixed_point(near, real), low - 1, high + 1) == np.clip(in_double(near, real), low - 1, high + 1)).all())


def weight_scale(scale: Any, input_scale: Any, output_scale: Any, low: int, high: int, reach: float) -> Any:
    """The float32 nearest to the `scale` of a channel's weights with which both ways agree; None where there is none within `WORST`."""
    import numpy as np

    ratio = float(input_scale) / float(output_scale)

    def holds(candidate: Any) -> bool:
        return agree(float(input_scale) * float(candidate) / float(output_scale), low, high, reach)

    if holds(scale):
        return scale
    inverse = 1 / (ratio * float(scale))
    middle = 2 * round(inverse / 2)
    for even in sorted((middle + 2 * step for step in range(-NEAREST, NEAREST + 1)), key=lambda n: abs(n - inverse)):
        if even < 2 or abs(inverse / even - 1) > WORST:
            continue
        least = np.float32(1 / (even * ratio))
        for found in (least, np.nextafter(least, np.float32(np.inf))):
            above = float(found) * ratio * even - 1
            if -ROUND_OFF <= above < _room(even, max(abs(low), abs(high)) + 1) and holds(found):
                return found
    return None


def _room(even: int, steps: int) -> float:
    """How far M may lie above 1 / `even`, as a part of it, for halves of up to `steps` steps: the neighbor below a half, which is M away, must
    not reach it when rounded to steps of M's leading bit.
    """
    fraction, _ = math.frexp(1 / even)
    return (1 - 1 / (2 * fraction)) * 2 / ((2 * steps + 1) * even)
