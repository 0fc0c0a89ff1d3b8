from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.quantize import grid, rounding
from edgekit.quantize.layer import left_alone, round_layer
from edgekit.quantize.moments import Layer, from_parts, in_parts, merge, moments


def problem(seed: int, groups: int, outputs: int, k: int, samples: int = 200):
    random = np.random.default_rng(seed)
    mix = np.eye(k) + 0.8 * random.standard_normal((k, k)) / np.sqrt(k)
    columns = (random.standard_normal((groups, samples, k)) @ mix + random.standard_normal(k)).astype(np.float32)
    weight = random.standard_normal((groups, outputs, k))
    scales = grid.weight_scales(weight.reshape(-1, k)).reshape(weight.shape)
    return columns, weight, scales


@given(st.integers(0, 10_000), st.sampled_from([(1, 5, 12), (6, 1, 9), (3, 4, 80)]))
@settings(max_examples=25)
def test_second_order_is_never_worse_than_nearest_on_what_it_learns_from(seed, shape):
    columns, weight, scales = problem(seed, *shape)
    second = rounding.damped(moments(columns).second, 0.01)
    found = rounding.second_order(weight, scales, second)
    plain = grid.nearest(weight, scales)
    assert np.all(rounding.output_error(weight, found * scales, second) <= rounding.output_error(weight, plain * scales, second) * (1 + 1e-9))
    assert np.abs(found).max() <= 127
    assert np.array_equal(found, np.rint(found))


def test_output_error_is_the_mean_squared_change_of_the_outputs():
    columns, weight, scales = problem(3, 2, 4, 6)
    rounded = grid.nearest(weight, scales) * scales
    by_hand = [((columns[g] @ (weight[g, o] - rounded[g, o])) ** 2).mean() for g in range(2) for o in range(4)]
    np.testing.assert_allclose(rounding.output_error(weight, rounded, moments(columns).second), by_hand, rtol=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_second_order_comes_close_to_exhaustive_search(seed):
    columns, weight, _ = problem(seed, 1, 1, 5)
    scales = np.abs(weight).max(axis=2, keepdims=True) / 7 * np.ones_like(weight)  # four bits: rounding matters
    second = moments(columns).second
    low = np.floor(weight / scales)[0, 0]
    trials = np.clip(low + np.array(list(itertools.product((-1, 0, 1, 2), repeat=5))), -7, 7)
    change = weight[0] - trials * scales[0]
    errors = (change @ second[0] * change).sum(axis=1)
    found = rounding.second_order(weight, scales, second, bits=4, sweeps=10)
    nearest = rounding.output_error(weight, grid.nearest(weight, scales, bits=4) * scales, second)[0]
    reached = rounding.output_error(weight, found * scales, second)[0]
    assert errors.min() <= reached + 1e-9
    assert reached <= max(2 * errors.min(), errors.min() + 0.1 * (nearest - errors.min()))


def test_second_order_takes_most_of_the_error_back_where_inputs_are_alike():
    random = np.random.default_rng(1)
    common = random.standard_normal((1, 2000, 1))
    columns = (common + 0.1 * random.standard_normal((1, 2000, 32))).astype(np.float32)
    weight = random.standard_normal((1, 16, 32))
    scales = grid.weight_scales(weight[0])[None]
    second = moments(columns).second
    trials = grid.nearest(weight, scales), rounding.second_order(weight, scales, second)
    errors = [rounding.output_error(weight, integers * scales, second).sum() for integers in trials]
    assert errors[1] < 0.1 * errors[0]


def test_the_inverse_factor_is_triangular_and_inverts():
    second = rounding.damped(moments(problem(5, 3, 1, 7)[0]).second, 0.01)
    factor = rounding.inverse_factor(second)
    np.testing.assert_allclose(np.tril(factor, -1), 0)
    np.testing.assert_allclose(factor.transpose(0, 2, 1) @ factor @ second, np.broadcast_to(np.eye(7), (3, 7, 7)), atol=1e-8)


def test_an_input_that_is_always_zero_is_rounded_to_nearest():
    columns, weight, scales = problem(7, 1, 3, 6)
    columns[:, :, 2] = 0
    found = rounding.second_order(weight, scales, rounding.damped(moments(columns).second, 1e-6))
    np.testing.assert_array_equal(found[:, :, 2], grid.nearest(weight, scales)[:, :, 2])


def test_moments_merge_to_those_of_all_columns():
    columns = problem(9, 2, 1, 5, samples=90)[0]
    whole, parts = moments(columns), None
    for part in np.split(columns, [20, 50], axis=1):
        parts = merge(parts, moments(part))
    assert parts is not None and parts.count == whole.count
    np.testing.assert_allclose(parts.mean, whole.mean, atol=1e-6)
    np.testing.assert_allclose(parts.second, whole.second, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="no samples"):
        moments(columns[:, :0])


def test_bias_correction_leaves_no_mean_error():
    columns, weight, _ = problem(11, 1, 4, 8)
    layer = Layer(weight[0], np.arange(4.0))
    seen = moments(columns)
    rounded = round_layer(layer, (seen, seen), method="bias")
    error = columns[0] @ (layer.weight - rounded.weight).T + layer.bias - rounded.bias
    np.testing.assert_allclose(error.mean(axis=0), 0, atol=1e-5)


def test_bias_correction_takes_back_what_earlier_layers_shifted():
    columns, weight, _ = problem(13, 1, 4, 8)
    layer = Layer(weight[0], np.zeros(4))
    shifted = columns + 0.3
    rounded = round_layer(layer, (moments(shifted), moments(shifted)), (moments(columns), moments(columns)))
    outputs = shifted[0] @ rounded.weight.T + rounded.bias
    np.testing.assert_allclose(outputs.mean(axis=0), (columns[0] @ layer.weight.T).mean(axis=0), atol=1e-5)


@pytest.mark.parametrize("groups", [1, 3])
def test_weights_make_up_for_noise_that_earlier_layers_left(groups):
    random = np.random.default_rng(15)
    mix = np.diag(np.geomspace(1, 0.02, 12))  # the last inputs are so small that noise drowns them
    wanted = (random.standard_normal((groups, 6000, 12)) @ mix).astype(np.float32)
    seen = (wanted + 0.1 * random.standard_normal(wanted.shape) + 0.2).astype(np.float32)
    layer = Layer(random.standard_normal((groups * 4, 12)) @ np.linalg.inv(mix) / 10, np.zeros(groups * 4), groups)
    halves = [slice(0, 4000), slice(4000, 5000)]
    means = tuple(moments(wanted[:, half], second=False) for half in halves)
    plain = tuple(moments(seen[:, half]) for half in halves)
    crossed = tuple(moments(seen[:, half], wanted[:, half]) for half in halves)
    fresh, goal = (array[:, 5000:].astype(np.float64) for array in (seen, wanted))

    def error(rounded) -> float:
        made = np.matmul(fresh, rounded.weight.reshape(groups, -1, 12).transpose(0, 2, 1)) + rounded.bias.reshape(groups, 1, -1)
        return float(((made - np.matmul(goal, layer.grouped.transpose(0, 2, 1))) ** 2).mean())

    assert error(round_layer(layer, crossed, means)) < 0.5 * error(round_layer(layer, plain, means))
    exact = [np.linalg.lstsq(fresh[g], goal[g] @ layer.grouped[g].T, rcond=None) for g in range(groups)]
    best = np.mean([((fresh[g] @ found[0] - goal[g] @ layer.grouped[g].T) ** 2).mean() for g, found in enumerate(exact)])
    assert error(round_layer(layer, crossed, means)) < 1.15 * best  # scales stay those of the float weights


def test_a_method_that_fails_on_held_out_samples_is_not_used():
    random = np.random.default_rng(17)
    weight = random.standard_normal((8, 64))
    teach = moments(random.standard_normal((1, 20, 64)).astype(np.float32))  # far too few samples for 64 inputs
    judge = moments(random.standard_normal((1, 5000, 64)).astype(np.float32))
    rounded = round_layer(Layer(weight, np.zeros(8)), (teach, judge))
    plain = grid.nearest(weight, rounded.scales)
    errors = [rounding.output_error(weight[None], (q * rounded.scales)[None], judge.covariance).sum() for q in (rounded.integers, plain)]
    assert errors[0] <= errors[1] * 1.02


def test_a_layer_of_many_inputs_is_rounded_in_parts(monkeypatch):
    monkeypatch.setattr("edgekit.quantize.moments.DENSE", 32)
    monkeypatch.setattr("edgekit.quantize.layer.DENSE", 32)
    random = np.random.default_rng(19)
    k = 71  # three parts, and one input of nothing
    columns = (random.standard_normal((3, 2000, 4)) @ random.standard_normal((4, k)) + 0.02 * random.standard_normal((3, 2000, k))).astype(np.float32)
    layer = Layer(random.standard_normal((6, k)).astype(np.float32), np.zeros(6, np.float32))
    seen = moments(columns[:1], columns[:1]), moments(columns[1:2], columns[1:2])
    assert seen[0].second.shape == (3, 24, 24) and seen[0].mean.shape == (1, k)
    rounded = round_layer(layer, seen, tuple(moments(columns[i : i + 1], second=False) for i in (0, 1)))
    plain = round_layer(layer, method="nearest")
    right = columns[2].astype(np.float64) @ layer.weight.T
    errors = [((columns[2] @ one.weight.T + one.bias - right) ** 2).mean() for one in (rounded, plain)]
    assert errors[0] < 0.1 * errors[1]
    assert rounded.in_parts and not plain.in_parts
    assert "1 of 2 layers have over 32 inputs" in left_alone([rounded, plain])[0]


@given(st.integers(1, 3), st.integers(1, 3), st.sampled_from([5, 2048, 2049, 6145]))
@settings(max_examples=20)
def test_parts_come_together_again(groups, rows, k):
    values = np.random.default_rng(k).standard_normal((groups, rows, k))
    parts = in_parts(values)
    assert parts.shape[2] <= 2048 and np.array_equal(from_parts(parts, groups, k), values)


def test_an_unknown_method_and_missing_moments_are_refused():
    layer = Layer(np.ones((2, 2)), np.zeros(2))
    with pytest.raises(ValueError, match="unknown"):
        round_layer(layer, method="random")
    with pytest.raises(ValueError, match="moments"):
        round_layer(layer)
    assert np.array_equal(round_layer(layer, method="nearest").integers, np.full((2, 2), 127))
