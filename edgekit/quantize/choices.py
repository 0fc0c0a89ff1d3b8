"""Which operators to leave in float or to give 16-bit activations, when each choice has a gain and a price."""

from __future__ import annotations

from collections.abc import Mapping


def worth_most(gains_db: Mapping[str, float], cost_bytes: Mapping[str, int], budget_bytes: int) -> tuple[str, ...]:
    """Names to choose within `budget_bytes`, by gain per byte (Dantzig 1957, the greedy rule of the knapsack problem); free gains first.

    At least half as good as the best choice: where one single operator beats all that the rule picks, it is taken instead. Names
    without a positive gain are never chosen. Raises `ValueError` for a negative cost.
    """
    if any(cost < 0 for cost in cost_bytes.values()):
        raise ValueError("a choice cannot cost fewer than 0 bytes")
    able = [name for name, gain in gains_db.items() if gain > 0 and cost_bytes[name] <= budget_bytes]
    chosen, spent = [], 0
    for name in sorted(able, key=lambda n: (-gains_db[n] / max(cost_bytes[n], 1e-9), n)):
        if spent + cost_bytes[name] <= budget_bytes:
            chosen.append(name)
            spent += cost_bytes[name]
    single = max(able, key=lambda n: (gains_db[n], n), default=None)
    if single is not None and gains_db[single] > sum(gains_db[name] for name in chosen):
        return (single,)
    return tuple(chosen)
