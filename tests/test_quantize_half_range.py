"""Values beyond half precision, in hand-made activations."""

from __future__ import annotations

import numpy as np

from edgekit.quantize import half_range


def test_overflow_and_underflow_are_named_with_their_value():
    samples = [{"a": np.array([1.0, 70000.0], np.float32), "b": np.full(4, 1e-9, np.float32), "c": np.array([0.0, 60000.0], np.float32)}]
    found = half_range.hazards(samples)
    assert [(hazard.name, hazard.kind) for hazard in found] == [("a", "overflow"), ("b", "underflow")]
    assert str(found[0]) == "a reaches 7e+04, and half precision ends at 65504"
    assert "1e-09" in str(found[1])


def test_masks_zeros_and_a_few_small_values_are_no_hazard():
    values = np.array([0.0, -np.inf, float(np.finfo(np.float32).min), 1e-9, 0.5, 0.25], np.float32)
    assert half_range.hazards([{"a": values}]) == ()


def test_the_bounds_are_those_of_numpys_half():
    assert float(np.finfo(np.float16).max) == half_range.LARGEST
    assert float(np.finfo(np.float16).smallest_subnormal) == half_range.SMALLEST
    assert np.float16(half_range.SMALLEST / 2) == 0
