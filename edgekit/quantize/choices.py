"""Which operators to leave in float or to give wider activations, when each choice has a gain and a price."""

from __future__ import annotations

from collections.abc import Mapping


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
