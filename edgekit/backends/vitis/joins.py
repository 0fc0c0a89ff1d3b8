"""Concatenations that one scale cannot serve: boxes in pixels beside scores up to 1."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from edgekit.backends.vitis import positions as ranges
from edgekit.backends.vitis.net import LINEAR, Net, Unit
from edgekit.backends.vitis.observe import Seen

MOST_APART = 2
"""Bits that the smallest part of a joined tensor may lose to the scale of the largest."""


def keep_apart(net: Net, units: Sequence[Unit], seen: Mapping[str, Seen]) -> tuple[Unit, ...]:
    """The units, with every Concat left to the CPU whose parts differ too much in range and go to no layer of the accelerator.

    Before a layer the parts stay together: scaling channels evens them out there.
    """
    leading = _leading(net, units)
    return tuple(_judged(net, unit, seen) if unit.on_dpu and unit.head.op_type == "Concat" and unit.output not in leading else unit for unit in units)


def _leading(net: Net, units: Sequence[Unit]) -> set[str]:
    """Tensors from which a way leads to a layer of the accelerator."""
    leading: set[str] = set()
    for unit in reversed(units):
        if (unit.on_dpu and unit.head.op_type in LINEAR) or any(name in leading for node in unit.nodes for name in node.output):
            leading |= set(net.unit_data(unit))
    return leading


def _judged(net: Net, unit: Unit, seen: Mapping[str, Seen]) -> Unit:
    reach = {name: float(seen[name].largest.max(initial=0)) for name in net.unit_data(unit) if name in seen}
    positions = {name: ranges.covering(largest) for name, largest in reach.items() if largest > 0}
    if not positions or max(positions.values()) - min(positions.values()) <= MOST_APART:
        return unit
    small, large = max(positions, key=positions.__getitem__), min(positions, key=positions.__getitem__)
    steps = math.floor(reach[small] * 2.0 ** positions[large])
    reason = f"joins {large} (up to {reach[large]:.3g}) and {small} (up to {reach[small]:.3g}): one scale would leave the latter {steps} steps of 127"
    return dataclasses.replace(unit, reason=reason, suggestion="split the output, or bring its parts to one range")
