from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.quantize.choices import clearly_less, worth_most


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


def test_errors_are_compared_sample_by_sample():
    others = [1.0, 2.0, 3.0, 6.0]
    assert clearly_less([0.9, 1.7, 2.8, 5.8], others)  # samples differ by far more than the two ways do
    assert not clearly_less(others, [0.9, 1.7, 2.8, 5.8])
    assert not clearly_less(others, others)
    assert not clearly_less([1.1, 1.8, 3.1, 5.7], others)  # a tie: better on two, worse on two
    assert not clearly_less([1.0, 1.9, 3.0, 0.1], others)  # one sample does not decide
    assert clearly_less([1.0], [2.0]) and not clearly_less([], [])


def test_ways_that_are_alike_are_rarely_told_apart():
    """4.3 % of Student's t of 7 degrees of freedom lie beyond 2."""
    rng = np.random.default_rng(0)
    found = [clearly_less(*rng.uniform(0, 1, (2, 8))) for _ in range(2000)]
    assert 0.03 < sum(found) / len(found) < 0.06
