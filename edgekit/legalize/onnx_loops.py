"""Loops of ONNX that run a known number of times, written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgekit.formats._onnx_graph import constant, graphs, rename_values
from edgekit.tensors import Array

MOST_ROUNDS = 64
"""A loop that runs more often, with the loops inside it, is left: written out it would outgrow the model around it."""


def unrolled(proto: Any) -> tuple[Any, int]:
    """A copy with every such Loop of the main graph written out, and how many there were; the graph itself where there is none.

    Loops inside them are in the main graph then, to be written out the next time.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    nodes: list[Any] = []
    count = 0
    for node in copy.graph.node:
        body = next((a.g for a in node.attribute if a.name == "body"), None) if node.op_type == "Loop" else None
        rounds = _rounds((copy.graph,), node, body) if body is not None else None
        if body is None or rounds is None or rounds * _rounds_inside((body, copy.graph), body) > MOST_ROUNDS:
            nodes.append(node)
            continue
        nodes += _written_out(copy.graph, node, body, rounds, f"loop{count}")
        count += 1
    if not count:
        return proto, 0
    kept = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del copy.graph.node[:], copy.graph.value_info[:]
    copy.graph.node.extend(kept)
    return copy, count


def _rounds(scopes: Sequence[Any], node: Any, body: Any) -> int | None:
    """How often a Loop of the first scope runs; None where values decide, or where it is too often."""
    limit = _known(scopes, node.input[0]) if node.input[0] else None
    first = _known(scopes, node.input[1]) if node.input[1] else True
    if limit is None or first is None or not bool(first) or not 0 < int(limit) <= MOST_ROUNDS:
        return None
    goes_on, makers = body.output[0].name, {name: one for one in body.node for name in one.output}
    while goes_on in makers and makers[goes_on].op_type == "Identity":
        goes_on = makers[goes_on].input[0]
    always = _known((body, *scopes), goes_on)
    return int(limit) if goes_on == body.input[1].name or (always is not None and bool(always)) else None


def _rounds_inside(scopes: Sequence[Any], graph: Any) -> int:
    """How often the Loops of a body run in one of its rounds, those inside them included; at least 1. One that is not known counts as 1."""
    total = 0
    for node in graph.node:
        body = next((a.g for a in node.attribute if a.name == "body"), None) if node.op_type == "Loop" else None
        if body is not None:
            total += (_rounds(scopes, node, body) or 1) * _rounds_inside((body, *scopes), body)
    return max(total, 1)


def _known(scopes: Sequence[Any], name: str) -> Array | None:
    """The value of a constant, of the innermost graph that has it."""
    for place, graph in enumerate(scopes):
        if (found := constant(graph, name)) is not None:
            return found
        maker = next((node for node in graph.node if name in node.output), None)
        if maker is not None and maker.op_type == "Identity":
            return _known(scopes[place + 1 :], maker.input[0])
    return None


def _written_out(graph: Any, node: Any, body: Any, rounds: int, prefix: str) -> list[Any]:
    """The nodes of all rounds; the body's constants go to `graph`, once for all rounds."""
    import numpy as np
    import onnx

    states, scans = list(node.input[2:]), len(node.output) - (len(node.input) - 2)
    rows: list[list[str]] = [[] for _ in range(scans)]
    made: list[Any] = []
    for number in range(rounds):
        one = onnx.GraphProto()
        one.CopyFrom(body)
        fixed = {body.input[0].name: np.array(number, np.int64), body.input[1].name: np.array(True)}
        names = {value: f"{prefix}/{number}/{value}" for value in _own_names(one)}
        names |= {tensor.name: f"{prefix}/{tensor.name}" for tensor in body.initializer}
        names |= {value.name: state for value, state in zip(body.input[2:], states, strict=True)}
        rename_values(one, names)
        graph.initializer.extend(one.initializer if number == 0 else ())
        graph.initializer.extend(onnx.numpy_helper.from_array(value, names[key]) for key, value in fixed.items())
        made += _renamed_nodes(one, f"{prefix}/{number}")
        results = [value.name for value in one.output[1:]]
        states = results[: len(states)]
        for row, name in zip(rows, results[len(states) :], strict=True):
            row.append(name)
    made += [onnx.helper.make_node("Identity", [state], [out]) for state, out in zip(states, node.output, strict=False) if out]
    for row, out in zip(rows, node.output[len(states) :], strict=True):
        made += _stacked(graph, row, out)
    return made


def _own_names(body: Any) -> set[str]:
    made = {name for graph in graphs(body) for node in graph.node for name in node.output if name}
    return made | {value.name for graph in graphs(body) for value in (*graph.input, *graph.initializer)}


def _renamed_nodes(one: Any, prefix: str) -> list[Any]:
    for node in one.node:
        node.name = f"{prefix}/{node.name}" if node.name else ""
    return list(one.node)


def _stacked(graph: Any, row: list[str], out: str) -> list[Any]:
    """What each round gives, one below the other."""
    import numpy as np
    import onnx

    if not out:
        return []
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([0], np.int64), f"{out}/axis"))
    rows = [onnx.helper.make_node("Unsqueeze", [name, f"{out}/axis"], [f"{out}/{number}"]) for number, name in enumerate(row)]
    return [*rows, onnx.helper.make_node("Concat", [f"{out}/{number}" for number in range(len(row))], [out], axis=0)]
