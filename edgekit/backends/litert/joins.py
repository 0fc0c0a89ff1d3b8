"""Joins of unlike ranges: one tensor, and so one scale, for boxes in pixels and scores below one."""

from __future__ import annotations

from typing import Any

from edgekit.backends.litert.source import Source
from edgekit.formats import tflite_flatbuffer as flatbuffer

UNLIKE = 8.0
"""Ratio of the joined ranges from which the narrower input loses three of its eight bits."""

MOVES = frozenset({"RESHAPE", "TRANSPOSE", "SQUEEZE", "EXPAND_DIMS", "CONCATENATION", "PACK", "SLICE", "STRIDED_SLICE", "SPLIT", "PAD"})
"""Operators that move values without changing them: a join stays a join behind them."""

JOIN = "the join stays float, so that the narrow part keeps its resolution"
INTEGER = "everything is integer here, and one 8-bit scale rounds the narrow part away: give it an output of its own"


def unlike(source: Source) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Scopes of the operators to keep in float, and a notice for each join: those of unlike ranges, with what only moves their values on.

    A join that a computing operator reads behind moves is left alone: what it reads is a feature map, whose narrow part still counts
    by its weights.
    """
    model = source.fresh()
    graph = model.subgraphs[0]
    scopes, notices = list[str](), list[str]()
    for op in graph.operators:
        if flatbuffer.op_name(model, op) not in ("CONCATENATION", "PACK"):
            continue
        spans = {flatbuffer.text(graph.tensors[i].name): _span(source, graph.tensors[i]) for i in op.inputs if i >= 0}
        known = {name: span for name, span in spans.items() if span > 0}
        behind = _moved(model, int(op.outputs[0]))
        if len(known) < 2 or max(known.values()) < UNLIKE * min(known.values()) or behind is None:
            continue
        wide, narrow = max(known, key=lambda n: known[n]), min(known, key=lambda n: known[n])
        scopes += [] if source.context.integer else [scope(graph, o) for o in (op, *behind)]
        parts = f"{wide} reaches {known[wide]:.4g}, {narrow} {known[narrow]:.4g}"
        joined = flatbuffer.text(graph.tensors[op.outputs[0]].name)
        notices.append(f"{joined} joins unlike ranges ({parts}): {INTEGER if source.context.integer else JOIN}")
    return tuple(dict.fromkeys(scopes)), tuple(notices)


def scope(graph: Any, op: Any) -> str:
    """The name by which the quantizer's recipes know an operator: its output tensors' names."""
    return "".join(f"{flatbuffer.text(graph.tensors[i].name)};" for i in op.outputs if i >= 0)


def _span(source: Source, tensor: Any) -> float:
    import numpy as np

    extremes = source.extremes.get(flatbuffer.text(tensor.name))
    return 0.0 if extremes is None else float(np.abs(extremes).max())


def _moved(model: Any, tensor: int) -> list[Any] | None:
    """The operators that only move `tensor` on to the graph's outputs; None where something computes with it."""
    graph = model.subgraphs[0]
    readers = [op for op in graph.operators if tensor in {int(i) for i in op.inputs}]
    found: list[Any] = []
    for op in readers:
        if flatbuffer.op_name(model, op) not in MOVES:
            return None
        found.append(op)
        for output in op.outputs:
            behind = _moved(model, int(output))
            if behind is None:
                return None
            found += behind
    return found
