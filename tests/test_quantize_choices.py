from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.quantize.choices import worth_most


@given(st.lists(st.tuples(st.floats(-1, 5), st.integers(0, 50)), max_size=7), st.integers(0, 100))
def test_the_choice_fits_and_is_at_least_half_of_the_best(rows, budget):
    gains, costs = {f"n{i}": gain for i, (gain, _) in enumerate(rows)}, {f"n{i}": cost for i, (_, cost) in enumerate(rows)}
    chosen = worth_most(gains, costs, budget)
    subsets = (s for size in range(len(gains) + 1) for s in itertools.combinations(gains, size))
    best = max(sum(gains[n] for n in s) for s in subsets if sum(costs[n] for n in s) <= budget)
    assert sum(costs[n] for n in chosen) <= budget
    assert sum(gains[n] for n in chosen) >= best / 2 - 1e-9


def test_free_gains_come_first_and_losses_never():
    assert worth_most({"free": 0.1, "dear": 5.0, "bad": -1.0}, {"free": 0, "dear": 90, "bad": 0}, 100) == ("free", "dear")
    with pytest.raises(ValueError, match="less than nothing"):
        worth_most({"a": 1.0}, {"a": -1}, 10)
