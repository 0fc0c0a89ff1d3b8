"""The operators that firmware must register: `MicroMutableOpResolver<N>` with exactly those of the file, so that none can be missing."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edgekit.embed.tflm import registrations
from edgekit.graph import Graph

FILE = "operators.json"


class Needed(msgspec.Struct, frozen=True):
    """An operator that the file holds: the versions and types of its tensors, how many there are, and the resolver's call."""

    type: str
    versions: tuple[int, ...]
    types: tuple[str, ...]
    count: int
    registration: str


def needed(graph: Graph) -> tuple[Needed, ...]:
    """Every kind of operator of all subgraphs, sorted by name."""
    calls = registrations(graph)
    rows = []
    for kind in sorted(calls):
        users = [o for o in graph.operators if o.type == kind]
        types = {graph.tensors[i].dtype for o in users for i in (*o.inputs, *o.outputs) if i >= 0}
        rows.append(Needed(kind, tuple(sorted({o.version for o in users})), tuple(sorted(types)), len(users), calls[kind]))
    return tuple(rows)


def write(graph: Graph, folder: Path) -> dict[str, str]:
    """Write the list as JSON."""
    (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(needed(graph)), indent=1) + b"\n")
    return {FILE: "operators to register, with versions and types"}
