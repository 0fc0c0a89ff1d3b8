"""One range for what a written-out recurrent layer reads at every step, and one for what it makes: its weights are stored once, and so are scales
and biases that fit one grid before and one behind them.
"""

from __future__ import annotations

from typing import Any

from edgekit.backends.litert.stock import Range, Ranges
from edgekit.formats import tflite_flatbuffer as flatbuffer


def alike(model: Any, ranges: Ranges) -> Ranges:
    """The ranges of a float model's activations by name, those at the steps of one layer widened to the widest."""
    found = dict(ranges)
    for names in _groups(model):
        known = [found[name] for name in names if name in found]
        for name in names & found.keys():
            found[name] = Range(min(r.low for r in known), max(r.high for r in known), found[name].rank)
    return found


def _groups(model: Any) -> list[set[str]]:
    """Names of activations that are to have one range: disjoint sets."""
    graph, groups, steps = model.subgraphs[0], list[set[str]](), dict[int, list[Any]]()
    for op in graph.operators:
        if flatbuffer.op_name(model, op) == "FULLY_CONNECTED" and flatbuffer.constant(model, graph.tensors[int(op.inputs[1])]) is not None:
            steps.setdefault(int(op.inputs[1]), []).append(op)
    for tied in (ops for ops in steps.values() if len(ops) > 1):
        for ends in ([int(op.inputs[0]) for op in tied], [int(op.outputs[0]) for op in tied]):
            names = {flatbuffer.text(graph.tensors[i].name) for i in ends}
            joined = [group for group in groups if group & names]
            groups = [*(group for group in groups if not group & names), names.union(*joined)]
    return groups
