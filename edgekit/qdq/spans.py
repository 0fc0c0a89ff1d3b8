"""Least spans of 16-bit grids on Hexagon's HTP: on narrower ones some of its kernels compute something else.

Measured on the HTP simulator (QNN API 2.40), one operator at a time: a Log whose result spans less than 4.0 gives zeros, a Softmax whose input
spans less than 0.2 is off by half. A wider grid costs resolution that 16 bits have to spare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from edgekit.qdq import protos
from edgekit.qdq.operators import MOVERS
from edgekit.quantize.ranges import Histogram
from edgekit.tensors import Array

OUTPUTS = {"Log": 4.01}
INPUTS = {"Softmax": 0.5, "LogSoftmax": 0.5}


def widened(proto: Any, seen: Mapping[str, Histogram]) -> dict[str, Histogram]:
    """`seen` with the ranges that 16-bit grids need; for a graph that is written in 16 bits throughout."""
    made, values = protos.producers(proto.graph.node), protos.constants(proto)
    least: dict[str, float] = {}
    for node in proto.graph.node:
        if node.op_type in OUTPUTS:
            least[node.output[0]] = OUTPUTS[node.op_type]
        if node.op_type in INPUTS:
            for name, span in _before(proto, made, values, node.input[0], INPUTS[node.op_type]):
                least[name] = max(span, least.get(name, 0.0))
    return {name: _wider(found, least.get(name, 0.0)) for name, found in seen.items()}


def _before(proto: Any, made: Mapping[str, int], values: Mapping[str, Array], name: str, span: float) -> Iterator[tuple[str, float]]:
    """The values on the way to `name` whose grids decide, with their least spans: operators that only move values hand their grid on, and
    a factor before the operator becomes part of it.
    """
    yield name, span
    while name in made:
        node = proto.graph.node[made[name]]
        if node.op_type in MOVERS:
            name = node.input[0]
        elif node.op_type in ("Mul", "Div") and (found := _factor(node, values)):
            name, factor = found
            span = span / factor if node.op_type == "Mul" else span * factor
        else:
            return
        yield name, span


def _factor(node: Any, values: Mapping[str, Array]) -> tuple[str, float] | None:
    """The input that one number scales, and that number's magnitude."""
    for at in (1, 0) if node.op_type == "Mul" else (1,):
        value = values.get(node.input[at])
        if value is not None and value.size == 1 and float(value.reshape(-1)[0]):
            return node.input[1 - at], abs(float(value.reshape(-1)[0]))
    return None


def _wider(seen: Histogram, span: float) -> Histogram:
    missing = span - (seen.high - seen.low)
    if missing <= 0:
        return seen
    low, high = (seen.low, seen.high + missing) if seen.high >= -seen.low else (seen.low - missing, seen.high)
    return dataclasses.replace(seen, low=low, high=high)
