"""Divisions: the integer kernel stops at a divisor that is zero, and a small one rounds to zero."""

from __future__ import annotations

from edgekit.backends.litert import joins
from edgekit.backends.litert.source import Source
from edgekit.formats import tflite_flatbuffer as flatbuffer


def kept_float(source: Source) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Scopes of the divisions by something computed, and a notice about them."""
    model = source.fresh()
    graph = model.subgraphs[0]
    found = [
        op for op in graph.operators if flatbuffer.op_name(model, op) == "DIV" and flatbuffer.constant(model, graph.tensors[op.inputs[1]]) is None
    ]
    if not found:
        return (), ()
    names = ", ".join(flatbuffer.text(graph.tensors[op.outputs[0]].name) for op in found[:3]) + (" and more" if len(found) > 3 else "")
    notice = f"{names}: division stays float, for a divisor that rounds to zero stops the integer kernel"
    return tuple(joins.scope(graph, op) for op in found), (notice,)
