from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.quantize import equalize, grid, ranges

reals = st.floats(-1000, 1000, allow_nan=False)


@given(reals, reals, st.booleans(), st.booleans(), st.sampled_from([8, 16]))
@settings(max_examples=60)
def test_a_grid_covers_its_range_and_holds_zero(one, other, signed, symmetric, bits):
    low, high = min(one, other), max(one, other)
    found = grid.affine(low, high, bits=bits, signed=signed, symmetric=symmetric)
    assert found.lowest <= found.zero_point <= found.highest
    assert found.round(np.array([0.0]))[0] == 0.0
    inside = np.linspace(min(low, 0.0), max(high, 0.0), 50)
    assert np.abs(found.round(inside) - inside).max() <= found.scale + 1e-12


def test_weight_scales_are_of_channels_and_leave_room_for_a_bias():
    weight = np.array([[1.0, -2.0, 4.0, 0.5], [0.0, 0.0, 0.0, 0.0]])
    assert grid.weight_scales(weight)[0] == pytest.approx(np.full(4, 4 / 127))
    assert grid.weight_scales(weight, floor=0.01)[1] == pytest.approx(np.full(4, 0.01))


def heavy_tailed(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(3, 20000) + 0.5


@pytest.mark.parametrize(("seed", "bits", "symmetric"), [(0, 8, False), (1, 8, True), (2, 4, False)])
def test_the_least_squares_range_agrees_with_a_grid_search_on_the_values(seed, bits, symmetric):
    values = heavy_tailed(seed)
    seen = ranges.histogram(values, values.min(), values.max())

    def error(low: float, high: float) -> float:
        return float(((grid.affine(low, high, bits=bits, symmetric=symmetric).round(values) - values) ** 2).mean())

    shares = np.linspace(0.05, 1, 40)
    bound = max(-values.min(), values.max())
    trials = [(-bound * a, bound * a) for a in shares] if symmetric else [(values.min() * a, values.max() * b) for a in shares for b in shares]
    best = min(error(*trial) for trial in trials)
    found = error(*ranges.choose(seen, "mse", bits=bits, symmetric=symmetric))
    assert found <= error(values.min(), values.max())
    assert found <= (1.15 if bits == 8 else 2.5) * best  # the search stops at half of the range seen


def test_the_expected_error_is_the_measured_one():
    values = np.random.default_rng(4).normal(0, 1, 100_000)
    seen = ranges.histogram(values, values.min(), values.max())
    for low, high in ((-4.5, 4.5), (-2.0, 2.0), (-1.0, 3.0)):
        measured = ((grid.affine(low, high).round(values) - values) ** 2).mean()
        assert ranges.squared_error(seen, low, high) == pytest.approx(measured, rel=0.05)


def test_percentile_leaves_out_the_tails_and_minmax_nothing():
    values = np.concatenate([np.linspace(-1, 1, 100_000), [50.0]])
    seen = ranges.histogram(values, -1, 50)
    assert ranges.choose(seen, "minmax") == (-1, 50)
    low, high = ranges.choose(seen, "percentile")
    assert low == pytest.approx(-1, abs=0.05) and high == pytest.approx(1, abs=0.05)


def test_entropy_clips_an_outlier_and_keeps_what_is_full():
    random = np.random.default_rng(5)
    outlier = np.concatenate([random.normal(0, 1, 50_000), [-12.0, 12.0]])
    low, high = ranges.choose(ranges.histogram(outlier, -12, 12), "entropy")
    assert -12 <= low < 0 < high <= 12 and high - low < 24
    even = random.uniform(-1, 1, 200_000)
    seen = ranges.histogram(even, even.min(), even.max())
    trials = [(even.min() * a, even.max() * a) for a in (1.0, 0.8, 0.5)]
    divergences = [ranges.divergence(seen, *trial) for trial in trials]
    assert divergences[0] == min(divergences)


def test_what_clipping_adds_to_either_end_counts_there():
    seen = ranges.Histogram(-2.0, 2.0, np.array([4.0, 4.0, 4.0, 4.0]))  # bins of width 1
    both = ranges.divergence(seen, -1.0, 1.0, bits=8)  # the middle bins hold 4 and 4, and each takes 4 more from its own side
    assert both == pytest.approx(0.0, abs=1e-9)
    left = ranges.divergence(seen, -1.0, 2.0, bits=8)  # (8, 4, 4) of 16 against (4, 4, 4) of 12
    assert left == pytest.approx(0.5 * np.log(0.5 * 3) + 2 * 0.25 * np.log(0.25 * 3))


def test_a_tensor_that_is_always_zero_has_no_range():
    seen = ranges.histogram(np.zeros(10), 0, 0)
    for method in ("minmax", "mse", "percentile", "entropy"):
        assert ranges.choose(seen, method) == (0, 0)
    with pytest.raises(ValueError, match="median"):
        ranges.choose(seen, "median")


def test_histograms_of_one_range_add():
    one, two = ranges.histogram(np.array([0.1, 0.9]), 0, 1, 4), ranges.histogram(np.array([0.9]), 0, 1, 4)
    np.testing.assert_array_equal(ranges.merge(one, two).counts, [1, 0, 0, 2])
    with pytest.raises(ValueError, match="bins"):
        ranges.merge(one, ranges.histogram(np.array([0.5]), 0, 2, 4))


def test_equalizing_gives_both_sides_the_same_spread_and_keeps_the_product():
    random = np.random.default_rng(6)
    first, second = random.standard_normal((8, 5)) * np.logspace(-2, 1.5, 8)[:, None], random.standard_normal((3, 8)) / np.logspace(-2, 1.5, 8)
    x = random.standard_normal((5, 200))
    hidden = np.maximum(first @ x, 0)
    factors = equalize.factors(np.abs(hidden).max(axis=1), np.abs(second).max(axis=0))
    moved = np.maximum((first / factors[:, None]) @ x, 0)
    np.testing.assert_allclose((second * factors) @ moved, second @ hidden, rtol=1e-10)
    assert equalize.imbalance(np.abs(hidden).max(axis=1)) > 20
    ratio = np.abs(moved).max(axis=1) / np.abs(second * factors).max(axis=0)
    np.testing.assert_allclose(ratio, ratio[0])
    flat = equalize.factors(np.abs(hidden).max(axis=1), np.abs(second).max(axis=0), balance=1.0)
    assert equalize.imbalance(np.abs(hidden).max(axis=1) / flat) == pytest.approx(1)


def test_a_dead_channel_is_not_scaled():
    factors = equalize.factors(np.array([0.0, 1.0, 4.0]), np.array([1.0, 1.0, 1.0]))
    assert factors[0] == 1 and np.isfinite(factors).all()
    assert np.array_equal(equalize.factors(np.zeros(3), np.ones(3)), np.ones(3))
