"""Scales with which a multiplier of 31 bits and one in double precision give the same, for every accumulator there is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgekit.quantize import exact
from edgekit.tensors import Array

INPUT, OUTPUT = np.float32(0.0349846), np.float32(0.0186062)


def product(scale: float) -> float:
    return float(INPUT) * float(np.float32(scale)) / float(OUTPUT)


def by_fractions(accumulators: Array, real: float) -> list[int]:
    """Rounded twice as gemmlowp does, in Python's integers: to 31 bits with halves up, then by a power of two with halves away from zero."""
    bits, exponent = exact.quantized_multiplier(real)
    found = []
    for accumulator in accumulators.tolist():
        high = (accumulator * bits * 2 ** max(exponent, 0) + 2**30) // 2**31
        divisor = 2 ** max(-exponent, 0)
        found.append(int(math.copysign((2 * abs(high) + divisor) // (2 * divisor), high)))
    return found


@pytest.mark.parametrize("inverse", [5.2, 63.9, 129.0, 511.4, 999.5])
def test_the_chosen_scale_gives_the_same_for_every_accumulator_and_the_given_one_does_not(inverse: float) -> None:
    given = np.float32(float(OUTPUT) / float(INPUT) / inverse)
    every = np.arange(-int(140 * inverse), int(140 * inverse) + 1)
    chosen = exact.weight_scale(given, INPUT, OUTPUT, -133, 122, 1e6)
    assert abs(chosen / given - 1) <= max(1.1 / inverse, 0.035), "at most the distance to the next even number, more by a power of two"
    for scale, equal in ((chosen, True), (given, False)):
        fixed, double = exact.fixed_point(every, product(scale)), exact.in_double(every, product(scale))
        inside = (double >= -133) & (double <= 122)
        assert (fixed == double)[inside].all() == equal
        assert exact.agree(product(scale), -133, 122, 1e6) == equal
        assert fixed.tolist() == by_fractions(every, product(scale))
        assert double.tolist() == [int(math.copysign(math.floor(abs(a * product(scale)) + 0.5), a)) for a in every.tolist()]


def test_a_scale_that_agrees_already_stays() -> None:
    reach = 40  # fewer than half a step: whatever the scale, the channel gives zero
    assert exact.weight_scale(np.float32(1e-4), INPUT, OUTPUT, -128, 127, reach) == np.float32(1e-4)
    assert exact.weight_scale(np.float32(1e-30), INPUT, OUTPUT, -128, 127, 1e6) == np.float32(1e-30)


def test_there_is_none_where_a_step_of_the_accumulator_is_more_than_one_of_the_output() -> None:
    assert exact.weight_scale(np.float32(2.0), INPUT, OUTPUT, -128, 127, 1e6) is None


def test_most_layers_of_any_size_have_scales_next_to_theirs() -> None:
    rng = np.random.default_rng(0)
    for inverse in 10 ** rng.uniform(2, 5.5, 60):
        given = np.float32(float(OUTPUT) / float(INPUT) / inverse)
        chosen = exact.weight_scale(given, INPUT, OUTPUT, -128, 127, 1e8)
        assert chosen is not None and abs(chosen / given - 1) < 0.03
