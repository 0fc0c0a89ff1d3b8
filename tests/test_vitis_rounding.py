"""Weights and bias rounded together, against direct evaluation of outputs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from edgekit.backends.vitis import rounding
from edgekit.qdq.layers import OnnxLayer
from edgekit.quantize.moments import Layer

DENSE = OnnxLayer(0, "Gemm", "layer", "x", "w", "b", "y", 1, 0, ())


def inputs(rng: Any, samples: int, k: int) -> list[Any]:
    """Rectified and correlated, as activations are."""
    mix = rng.randn(k, k)
    return [np.maximum(rng.randn(40, k) @ mix + 0.5, 0).astype(np.float32) for _ in range(samples)]


def error(layer: Layer, made: rounding.Integers, floats: list[Any], seen: list[Any]) -> float:
    """Mean squared change of the outputs."""
    weight, bias = made.weight * 2.0**-made.weight_position, made.bias * 2.0**-made.bias_position
    wanted, got = np.concatenate(floats) @ layer.weight.T + layer.bias, np.concatenate(seen) @ weight.T + bias
    return float(((wanted - got) ** 2).mean())


def nearest(layer: Layer, position: int, bias_position: int) -> rounding.Integers:
    weight, bias = (np.rint(v * 2.0**p) for v, p in ((layer.weight, position), (layer.bias, bias_position)))
    return rounding.Integers(weight, position, bias, bias_position)


@pytest.mark.parametrize(("bias_position", "share"), [(1, 0.3), (3, 0.6)])
def test_weights_take_over_the_error_of_a_coarse_bias(bias_position: int, share: float) -> None:
    rng = np.random.RandomState(0)
    layer = Layer(rng.randn(8, 12) / 4, rng.randn(8), 1)
    drawn = inputs(rng, 18, 12)
    learned, fresh = drawn[:12], drawn[12:]
    made = rounding.together(layer, rounding.sums(DENSE, learned, learned), {6: (bias_position, bias_position)})
    assert (made.weight_position, made.bias_position) == (6, bias_position)
    assert np.abs(made.weight).max() <= 127
    assert error(layer, made, fresh, fresh) < share * error(layer, nearest(layer, 6, bias_position), fresh, fresh)


def test_one_output_is_near_the_best_of_all_integers() -> None:
    rng = np.random.RandomState(1)
    layer = Layer(rng.randn(1, 3), rng.randn(1), 1)
    seen = inputs(rng, 8, 3)
    made = rounding.together(layer, rounding.sums(DENSE, seen, seen), {2: (1, 1)})
    around = [np.floor(v * s) + np.arange(-1, 3) for v, s in ((*((w, 4) for w in layer.weight[0]), (layer.bias[0], 2)))]
    trials = (rounding.Integers(np.array([t[:3]]), 2, np.array(t[3:]), 1) for t in itertools.product(*around))
    best = min(error(layer, trial, seen, seen) for trial in trials)
    assert error(layer, made, seen, seen) <= 3 * best


def test_what_the_layers_before_lost_is_taken_back() -> None:
    rng = np.random.RandomState(2)
    layer = Layer(rng.randn(6, 10) / 3, rng.randn(6), 1)
    floats = inputs(rng, 16, 10)
    seen = [0.8 * x - 0.1 for x in floats]  # an error that weights and bias can undo
    made = rounding.together(layer, rounding.sums(DENSE, seen, floats), {7: (7, 7)})
    assert error(layer, made, floats, seen) < 0.05 * error(layer, nearest(layer, 7, 7), floats, seen)


def test_sums_are_those_of_all_columns() -> None:
    rng = np.random.RandomState(3)
    floats = inputs(rng, 8, 5)
    seen = [x + 0.1 for x in floats]
    teach, judge = rounding.sums(DENSE, seen, floats)
    assert (teach.count, judge.count) == (240, 80)
    for half, numbers in ((teach, (0, 1, 2, 4, 5, 6)), (judge, (3, 7))):
        x = np.concatenate([np.hstack([seen[n], np.ones((40, 1))]) for n in numbers])
        rest = np.concatenate([floats[n] - seen[n] for n in numbers])
        np.testing.assert_allclose(half.second[0], x.T @ x / len(x), rtol=1e-5)
        np.testing.assert_allclose(half.cross[0], rest.T @ x / len(x), rtol=1e-4)
