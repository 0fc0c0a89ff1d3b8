"""Where a build loses fidelity, said so that a user can act on it."""

from __future__ import annotations

import math

from edgekit.backends.vitis.calibrate import Calibrated
from edgekit.backends.vitis.search import decibels

SHOWN = 10
POOR_DB = 20.0
"""Below this, the tensors that cost most are named with what helps."""

LISTED = 3


def sensitivity(made: Calibrated) -> tuple[tuple[str, float, str], ...]:
    """(tensor, dB that its rounding costs, reason), worst first: measured one at a time in the float network on calibration samples."""
    total = sum(made.costs.values())
    worst = sorted(made.costs, key=lambda name: (-made.costs[name], name))[:SHOWN]
    return tuple((name, _lost_db(made.costs[name], total), f"rounding it alone leaves {decibels(made.costs[name]):.1f} dB") for name in worst)


def _lost_db(cost: float, total: float) -> float:
    return 10 * math.log10(total / max(total - cost, total * 1e-3)) if total > 0 else 0.0


def notices(made: Calibrated) -> tuple[str, ...]:
    """What bounds a poor build: its inputs, and the operators that cost most with the option that leaves them in float."""
    said = []
    given = sum(cost for name, cost in made.costs.items() if name in made.net.inputs)
    if decibels(given) < POOR_DB:
        said.append(f"rounding the inputs to int8 alone leaves {decibels(given):.1f} dB in the float network: no int8 build gets far past that")
    computed = [row for row in sensitivity(made) if row[0] not in made.net.inputs][:LISTED]
    if computed and decibels(sum(made.costs.values())) < POOR_DB:
        rows = ", ".join(f"{name} ({reason.removeprefix('rounding it alone ')})" for name, _, reason in computed)
        option = f'keep_float = ["{computed[0][0]}"]'
        said.append(f"costliest to round: {rows}; {option} in the options of a profile of your own leaves such an operator in float on the CPU")
    return tuple(said)
