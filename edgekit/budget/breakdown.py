"""Where a model's bytes are, layer by layer. Pure."""

from __future__ import annotations

import msgspec

from edgekit.graph import Graph, Operator

PASS_THROUGH = frozenset(("DEQUANTIZE", "DENSIFY"))
"""Operators that only unpack a constant: its bytes belong to the layer that uses it."""


class LayerRow(msgspec.Struct, frozen=True):
    """Constants of one layer, as a rectangle of a treemap. `share` is of the whole file. Operator -1 is the file's own structure."""

    operator: int
    type: str
    name: str
    constant_bytes: int
    share: float
    macs: int = 0


def layers(graph: Graph) -> tuple[LayerRow, ...]:
    """Constant bytes by layer, largest first, then the file's structure. A constant that several layers share counts with the first."""
    users = _users(graph)
    counted: dict[int, int] = {}
    for index, tensor in enumerate(graph.tensors):
        if tensor.stored_bytes and index in users:
            owner = _owner(graph, users, index)
            counted[owner.index] = counted.get(owner.index, 0) + tensor.stored_bytes
    total = max(graph.file_bytes, 1)
    rows = [LayerRow(o.index, o.type, o.name, counted[o.index], counted[o.index] / total, o.macs) for o in graph.operators if counted.get(o.index)]
    rest = max(graph.file_bytes - sum(counted.values()), 0)
    return (*sorted(rows, key=lambda row: (-row.constant_bytes, row.operator)), LayerRow(-1, "", "structure", rest, rest / total))


def _users(graph: Graph) -> dict[int, Operator]:
    """The first operator that reads each tensor."""
    found: dict[int, Operator] = {}
    for operator in graph.operators:
        for index in operator.inputs:
            found.setdefault(index, operator)
    return found


def _owner(graph: Graph, users: dict[int, Operator], index: int) -> Operator:
    owner = users[index]
    for _ in range(len(graph.operators)):  # a chain cannot be longer than the graph; a cycle ends here too
        following = users.get(owner.outputs[0]) if owner.type in PASS_THROUGH and owner.outputs else None
        if following is None:
            return owner
        owner = following
    return owner
