from __future__ import annotations

import numpy as np
import pytest

from edgekit.quantize import pruning, rounding


def test_magnitude_keeps_the_largest() -> None:
    weight = np.array([[[3.0, -0.1, 0.2, -4.0, 0.0, 1.0]]])
    np.testing.assert_array_equal(pruning.by_magnitude(weight, 0.5), [[[3.0, 0, 0, -4.0, 0, 1.0]]])
    np.testing.assert_array_equal(pruning.by_magnitude(weight, 0.0), weight)


@pytest.mark.parametrize(("groups", "k", "share"), [(1, 96, 0.5), (3, 40, 0.5), (1, 96, 0.75)])
def test_second_order_makes_up_for_what_became_zero(groups: int, k: int, share: float) -> None:
    rng = np.random.default_rng(2)
    weight = rng.normal(size=(groups, 20, k))
    inputs = rng.normal(size=(groups, 500, 8)) @ rng.normal(size=(groups, 8, k)) + 0.3 * rng.normal(size=(groups, 500, k))
    second = np.matmul(inputs.transpose(0, 2, 1), inputs) / 500 + 1e-3 * np.eye(k)
    found = pruning.second_order(weight, second, share)
    assert (found == 0).mean() >= share - 1e-9
    plain = rounding.output_error(weight, pruning.by_magnitude(weight, share), second).sum()
    assert rounding.output_error(weight, found, second).sum() < 0.35 * plain


def test_with_unrelated_inputs_the_smallest_weights_go() -> None:
    weight = np.random.default_rng(0).normal(size=(1, 6, 32))
    found = pruning.second_order(weight, np.eye(32)[None], 0.5)
    np.testing.assert_allclose(found, pruning.by_magnitude(weight, 0.5), atol=1e-12)
