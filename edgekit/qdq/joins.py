"""Joins of unlike ranges at a graph's end: one tensor, and so one grid, for boxes in pixels and scores below one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.qdq import protos
from edgekit.qdq.operators import MOVERS
from edgekit.quantize.ranges import Histogram

UNLIKE = 8.0
"""Ratio of the joined ranges from which the narrower one loses three of its eight bits."""


def unlike(proto: Any, seen: Mapping[str, Histogram]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Activations whose one grid would stand for unlike ranges, with what only moves them on to the outputs, and a notice for each join.

    A join that a computing operator reads is left alone: it is a feature map, whose narrow part still counts by its weights.
    """
    read, nodes = protos.consumers(proto.graph.node), proto.graph.node
    found, notices = frozenset[str](), list[str]()
    for node in (node for node in nodes if node.op_type == "Concat" and node.output[0] in seen):
        spans = {name: max(-seen[name].low, seen[name].high) for name in node.input if name in seen}
        known = {name: span for name, span in spans.items() if span > 0}
        behind = _moved(node.output[0], nodes, read)
        if len(known) < 2 or max(known.values()) < UNLIKE * min(known.values()) or behind is None:
            continue
        wide, narrow = max(known, key=lambda n: known[n]), min(known, key=lambda n: known[n])
        found |= behind
        notices.append(f"{node.output[0]} joins unlike ranges: {wide} reaches {known[wide]:.4g}, {narrow} {known[narrow]:.4g}")
    return found, tuple(notices)


def _moved(name: str, nodes: Any, read: Mapping[str, list[int]]) -> frozenset[str] | None:
    """`name` and what operators make of it that only move or join values; None where something computes with it."""
    found = frozenset((name,))
    for node in (nodes[index] for index in read.get(name, [])):
        if node.op_type not in MOVERS and node.op_type != "Concat":
            return None
        for output in node.output:
            behind = _moved(output, nodes, read)
            if behind is None:
                return None
            found |= behind
    return found
