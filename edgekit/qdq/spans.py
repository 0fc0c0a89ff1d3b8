"""Least spans of 16-bit grids on Hexagon's HTP: on narrower ones some of its kernels compute something else.

Measured on the HTP simulator (QNN API 2.40), one operator at a time: a Log whose result spans less than 4.0 gives zeros, a Softmax whose input
spans less than 0.2 is off by half. A wider grid costs resolution that 16 bits have to spare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from edgekit.qdq import protos
from edgekit.qdq.write import MOVERS
from edgekit.quantize.ranges import Histogram

OUTPUTS = {"Log": 4.01}
INPUTS = {"Softmax": 0.5, "LogSoftmax": 0.5}


def widened(proto: Any, seen: Mapping[str, Histogram]) -> dict[str, Histogram]:
    """`seen` with the ranges that 16-bit grids need; for a graph that is written in 16 bits throughout."""
    made = protos.producers(proto.graph.node)
    least: dict[str, float] = {}
    for node in proto.graph.node:
        if node.op_type in OUTPUTS:
            least[node.output[0]] = OUTPUTS[node.op_type]
        if node.op_type in INPUTS:
            least[_origin(proto, made, node.input[0])] = INPUTS[node.op_type]
    return {name: _wider(found, least.get(name, 0.0)) for name, found in seen.items()}


def _origin(proto: Any, made: Mapping[str, int], name: str) -> str:
    """The value whose grid `name` has: operators that only move values hand it on."""
    while name in made and proto.graph.node[made[name]].op_type in MOVERS:
        name = proto.graph.node[made[name]].input[0]
    return name


def _wider(seen: Histogram, span: float) -> Histogram:
    missing = span - (seen.high - seen.low)
    if missing <= 0:
        return seen
    low, high = (seen.low, seen.high + missing) if seen.high >= -seen.low else (seen.low - missing, seen.high)
    return dataclasses.replace(seen, low=low, high=high)
