"""Softmax of int8 in integers, as TFLite's reference kernel computes it: fixed point by gemmlowp's rules, the exponentials as a table.

Sources: TFLite `kernels/internal/reference/softmax.h` (5 integer bits for the difference to the maximum, 12 for the sum) and gemmlowp
`fixedpoint/fixedpoint.h` (exponential by a polynomial and a product of constants, reciprocal by three steps of Newton and Raphson).
"""

from __future__ import annotations

import math

DIFF_BITS, SUM_BITS = 5, 12
_MAX, _MIN = 2**31 - 1, -(2**31)
_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
"""exp(-1/4), exp(-1/2), exp(-1), ... exp(-16) with 31 fractional bits."""


def code(beta: float, scale: float, number: int) -> str:
    """The C function `softmax_N(x, rows, depth)`, which works in place."""
    rows = ", ".join(map(str, exponentials(beta, scale)))
    return _CODE.replace("@N@", str(number)).replace("@ROWS@", rows)


def exponentials(beta: float, scale: float) -> list[int]:
    """exp(-beta * scale * d) with 31 fractional bits for differences d of 0 to 255; 0 where the kernel cuts off."""
    real = min(beta * scale * 2 ** (31 - DIFF_BITS), float(_MAX))
    fraction, shift = math.frexp(real)
    multiplier = round_half_up(fraction * 2**31)
    if multiplier == 2**31:
        multiplier, shift = multiplier // 2, shift + 1
    radius = math.floor((2**DIFF_BITS - 1) * 2 ** (31 - DIFF_BITS) / 2**shift)
    return [exp_negative(high_mul(-d * 2**shift, multiplier)) if d <= radius else 0 for d in range(256)]


def exp_negative(a: int) -> int:
    """The exponential of a number that is not positive, 26 fractional bits in, 31 out."""
    if a == 0:
        return _MAX
    quarter = 1 << (31 - DIFF_BITS - 2)
    low = (a & (quarter - 1)) - quarter
    result = _exp_small(saturated(low << DIFF_BITS))
    remainder = low - a
    for place, power in enumerate(_POWERS):
        if remainder & (1 << (31 - DIFF_BITS - 2 + place)):
            result = high_mul(result, power)
    return result


def _exp_small(a: int) -> int:
    """The exponential on [-1/4, 0), 31 fractional bits: a Taylor polynomial of degree 4 about -1/8."""
    center, third = 1895147668, 715827883
    x = a + (1 << 28)
    x2 = high_mul(x, x)
    x3, x4 = high_mul(x2, x), high_mul(x2, x2)
    return center + high_mul(center, x + halved(high_mul(halved(x4, 2) + x3, third) + x2, 1))


def high_mul(a: int, b: int) -> int:
    """The high half of twice the product, rounded to nearest, ties away from zero (towards +inf for the nudge's sign), saturating."""
    if a == b == _MIN:
        return _MAX
    product = a * b
    total = product + ((1 << 30) if product >= 0 else 1 - (1 << 30))
    return total >> 31 if total >= 0 else -(-total >> 31)


def halved(x: int, exponent: int) -> int:
    """Division by a power of two, rounded to nearest, ties away from zero."""
    mask = (1 << exponent) - 1
    rest, threshold = x & mask, (mask >> 1) + (1 if x < 0 else 0)
    return (x >> exponent) + (1 if rest > threshold else 0)


def saturated(x: int) -> int:
    """Within 32 bits."""
    return max(_MIN, min(_MAX, x))


def round_half_up(x: float) -> int:
    """To nearest, ties away from zero, for a positive number."""
    return math.floor(x + 0.5)


_CODE = """
static int32_t high_mul_@N@(int32_t a, int32_t b) {
  if (a == b && a == INT32_MIN) return INT32_MAX;
  const int64_t product = (int64_t)a * b;
  const int64_t nudge = product >= 0 ? ((int64_t)1 << 30) : 1 - ((int64_t)1 << 30);
  return (int32_t)((product + nudge) / ((int64_t)1 << 31));
}

static int32_t shifted_up_@N@(int32_t x, int bits) {
  const int64_t wide = (int64_t)x * ((int64_t)1 << bits);
  return wide > INT32_MAX ? INT32_MAX : wide < INT32_MIN ? INT32_MIN : (int32_t)wide;
}

static int32_t divided_@N@(int32_t x, int bits) {
  const int32_t mask = (int32_t)(((int64_t)1 << bits) - 1);
  const int32_t rest = x & mask;
  const int32_t threshold = (mask >> 1) + (x < 0 ? 1 : 0);
  return (x >> bits) + (rest > threshold ? 1 : 0);
}

/* 1 / (1 + x) for x in [0, 1), 31 fractional bits */
static int32_t reciprocal_@N@(int32_t x) {
  const int32_t half = (int32_t)(((int64_t)x + INT32_MAX + 1) / 2);
  int32_t y = 1515870810 + high_mul_@N@(half, -1010580540);
  for (int i = 0; i < 3; i++) {
    const int32_t rest = (1 << 29) - high_mul_@N@(half, y);
    y += shifted_up_@N@(high_mul_@N@(y, rest), 2);
  }
  return shifted_up_@N@(y, 1);
}

static void softmax_@N@(int8_t *x, int32_t rows, int32_t depth) {
  static const int32_t exponentials[256] = {@ROWS@};
  for (int32_t row = 0; row < rows; row++, x += depth) {
    int32_t most = INT8_MIN;
    for (int32_t i = 0; i < depth; i++) most = x[i] > most ? x[i] : most;
    int32_t sum = 0;
    for (int32_t i = 0; i < depth; i++) sum += divided_@N@(exponentials[most - x[i]], 12);
    int zeros = 0;
    while (!(((uint32_t)sum << zeros) & 0x80000000u)) zeros++;
    const int32_t scale = reciprocal_@N@((int32_t)(((uint32_t)sum << zeros) - 0x80000000u));
    for (int32_t i = 0; i < depth; i++) {
      const int32_t value = divided_@N@(high_mul_@N@(scale, exponentials[most - x[i]]), 12 - zeros + 31 - 8) - 128;
      x[i] = (int8_t)(value > 127 ? 127 : value < -128 ? -128 : value);
    }
  }
}
"""
