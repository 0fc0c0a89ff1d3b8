"""Ends beyond which no reader of a tensor can tell its values apart, so that no integer need stand for them."""

from __future__ import annotations

import math
from typing import Any

from edgekit.backends.litert import running
from edgekit.formats import tflite_flatbuffer as flatbuffer

Ends = tuple[float, float]

READS: dict[str, Ends] = {
    "RELU": (0.0, math.inf),
    "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
    "HARD_SWISH": (-3.0, math.inf),
    "LOGISTIC": (-8.0, 8.0),
    "TANH": (-4.0, 4.0),
}
"""Where an operator's output stops to change: exactly, or by less than a tenth of the step that its 8-bit output has (sigmoid, tanh)."""


def of_readers(model: Any) -> dict[str, Ends]:
    """By name, the ends of the main graph's activations that only operators of `READS` read; the widest where several do."""
    graph = model.subgraphs[0]
    outputs = {int(i) for i in graph.outputs}
    readers: dict[int, list[str]] = {}
    for op in graph.operators:
        for index in {int(i) for i in op.inputs}:
            readers.setdefault(index, []).append(flatbuffer.op_name(model, op))
    found = {}
    for index in running.activations(model):
        kinds = readers.get(index, [])
        if kinds and index not in outputs and all(kind in READS for kind in kinds):
            lows, highs = zip(*(READS[kind] for kind in kinds), strict=True)
            found[flatbuffer.text(graph.tensors[index].name)] = (min(lows), max(highs))
    return found
