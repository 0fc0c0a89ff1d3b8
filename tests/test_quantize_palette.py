from __future__ import annotations

import itertools

import numpy as np
import pytest

from edgekit.quantize import palette, rounding


def loss(values: np.ndarray, weights: np.ndarray, entries: np.ndarray) -> float:
    return float((weights * (values - entries[palette.nearest(values, entries)]) ** 2).sum())


def test_a_table_finds_values_that_are_already_few() -> None:
    values = np.repeat([-3.0, -0.5, 0.25, 7.0], [3, 50, 20, 2])
    np.testing.assert_allclose(palette.table(values, np.ones(len(values)), 4), [-3.0, -0.5, 0.25, 7.0], atol=1e-9)


def test_a_table_is_near_the_best_of_all_partitions() -> None:
    rng = np.random.default_rng(0)
    values, weights = np.sort(rng.normal(size=12)), rng.uniform(0.1, 2, 12)
    best = min(
        loss(values, weights, np.array([np.average(values[a:b], weights=weights[a:b]) for a, b in itertools.pairwise((0, *cuts, 12))]))
        for cuts in itertools.combinations(range(1, 12), 2)
    )
    assert loss(values, weights, palette.table(values, weights, 3)) <= 1.5 * best


def test_heavy_values_get_closer_entries() -> None:
    values = np.linspace(-1, 1, 201)
    heavy = np.where(values > 0.8, 100.0, 0.01)
    entries = palette.table(values, heavy, 8)
    assert (entries > 0.75).sum() >= 4


def test_nearest_is_nearest() -> None:
    rng = np.random.default_rng(1)
    entries, values = np.sort(rng.normal(size=16)), rng.normal(size=(5, 7))
    found = palette.nearest(values, entries)
    np.testing.assert_array_equal(found, np.abs(values[..., None] - entries).argmin(-1))


@pytest.mark.parametrize("groups", [1, 3])
def test_second_order_lowers_the_error_of_correlated_inputs(groups: int) -> None:
    rng = np.random.default_rng(2)
    weight = rng.normal(size=(groups, 20, 32))
    inputs = rng.normal(size=(groups, 500, 6)) @ rng.normal(size=(groups, 6, 32)) + 0.1 * rng.normal(size=(groups, 500, 32))
    second = np.matmul(inputs.transpose(0, 2, 1), inputs) / 500 + 1e-3 * np.eye(32)
    entries = palette.table(weight.reshape(-1), np.ones(weight.size), 16)
    plain = rounding.output_error(weight, entries[palette.nearest(weight, entries)], second)
    better = rounding.output_error(weight, entries[palette.second_order(weight, entries, second)], second)
    assert (better <= plain + 1e-12).all()
    assert better.sum() < 0.3 * plain.sum()


def test_groups_of_outputs_have_tables_of_their_own() -> None:
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(8, 12)) * np.repeat([0.1, 3.0], 4)[:, None]
    entries = np.stack([palette.table(part.reshape(-1), np.ones(48), 8) for part in (weight[:4], weight[4:])])
    found = palette.looked_up(palette.nearest(weight, entries), entries)
    for rows, table in ((slice(4), entries[0]), (slice(4, 8), entries[1])):
        np.testing.assert_array_equal(found[rows], table[palette.nearest(weight[rows], table)])
    second = np.cov(rng.normal(size=(12, 200)) + rng.normal(size=200))[None]
    closer = palette.looked_up(palette.second_order(weight[None], entries, second)[0], entries)
    assert rounding.output_error(weight[None], closer[None], second).sum() < rounding.output_error(weight[None], found[None], second).sum()
