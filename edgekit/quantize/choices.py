"""Which operators to leave in float or to give wider activations, when each choice has a gain and a price; and which of two ways is better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

SURE = 2.0
"""Standard errors from which a mean difference is no chance: 4 % of eight pairs of ways that are alike lie beyond (Student's t)."""


def worth_most(gains: Mapping[str, float], costs: Mapping[str, int], budget: int) -> tuple[str, ...]:
    """Names to choose within `budget`, by gain per cost (Dantzig 1957, the greedy rule of the knapsack problem); free gains first. Gains are dB,
    or noise that is no more; costs and the budget are bytes, or multiply-adds.

    At least half as good as the best choice: where one single operator beats all that the rule picks, it is taken instead. Names
    without a positive gain are never chosen. Raises `ValueError` for a negative cost.
    """
    if any(cost < 0 for cost in costs.values()):
        raise ValueError("a choice cannot cost less than nothing")
    able = [name for name, gain in gains.items() if gain > 0 and costs[name] <= budget]
    chosen, spent = [], 0
    for name in sorted(able, key=lambda n: (-gains[n] / max(costs[n], 1e-9), n)):
        if spent + costs[name] <= budget:
            chosen.append(name)
            spent += costs[name]
    single = max(able, key=lambda n: (gains[n], n), default=None)
    if single is not None and gains[single] > sum(gains[name] for name in chosen):
        return (single,)
    return tuple(chosen)


def clearly_less(errors: Sequence[float], others: Sequence[float]) -> bool:
    """Whether `errors` are less than `others`, the error powers of two ways on the same samples, by more than chance explains.

    Pairs are compared (Student's paired t-test): the mean difference must lie below zero by more than `SURE` of its standard errors. Where one
    sample makes most of the difference, the standard error is as large as the mean: no sample decides alone. A single pair says which is
    less. Raises `ValueError` for unequal numbers of samples.
    """
    differences = [one - other for one, other in zip(errors, others, strict=True)]
    if not differences:
        return False
    mean = sum(differences) / len(differences)
    spread = sum((difference - mean) ** 2 for difference in differences) / max(len(differences) - 1, 1)
    return mean < -SURE * math.sqrt(spread / len(differences))
