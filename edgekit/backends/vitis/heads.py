"""The first operators of a network in float on the CPU, where int8 there would cost more than the whole rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from edgekit.backends.vitis.net import Net, Unit
from edgekit.backends.vitis.twins import macs

REASON = "in float, as rounding it costs the outputs more than the profile's tolerance leaves room for"
SUGGESTION = "accept less fidelity with --min-sqnr, and forbid this with float_macs = 0 in the profile's options"


def choose(net: Net, units: Sequence[Unit], costs: Mapping[str, float], room: float) -> frozenset[str]:
    """Outputs of the first units to leave to the CPU: those that hide the most noise, with at most a share `room` of the MACs; none where that
    is less than half of the noise.

    A tensor between two of them is not rounded any more, one that the accelerator reads still is. `costs` is as of `search.costs`.
    """
    made, hidden, spent = set(net.inputs), dict[frozenset[str], float](), 0
    most = room * sum(macs(net, node) for node in net.nodes)
    readers = {name: {unit.output for unit in units if name in net.unit_data(unit)} for name in costs}
    head: list[str] = []
    for unit in units:
        cost = sum(macs(net, node) for node in unit.nodes)
        if not set(net.unit_data(unit)) <= made or spent + cost > most:
            continue
        spent += cost
        made |= set(unit.nodes[-1].output)
        head.append(unit.output)
        inside = frozenset(head)
        hidden[inside] = sum(costs[name] for name, by in readers.items() if by and by <= inside)
    best = max(hidden, key=lambda inside: (hidden[inside], -len(inside)), default=frozenset[str]())
    return best if best and hidden[best] >= sum(costs.values()) / 2 else frozenset()


def left(units: Sequence[Unit], head: frozenset[str]) -> list[Unit]:
    """The units with those of the head refused."""
    return [dataclasses.replace(unit, reason=REASON, suggestion=SUGGESTION) if unit.output in head and unit.on_dpu else unit for unit in units]
