"""Loops of ONNX that run a known number of times, written out."""

from __future__ import annotations

from typing import Any

from edgekit.formats._onnx_graph import constant, graphs, rename_values

MOST_ROUNDS = 64
"""A loop that runs more often is left: written out it would outgrow the model around it."""


def unrolled(proto: Any) -> tuple[Any, int]:
    """A copy with every such Loop of the main graph written out, and how many there were; the graph itself where there is none."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    nodes: list[Any] = []
    count = 0
    for node in copy.graph.node:
        body = next((a.g for a in node.attribute if a.name == "body"), None) if node.op_type == "Loop" else None
        rounds = _rounds(copy.graph, node, body) if body is not None else None
        if body is None or rounds is None:
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


def _rounds(graph: Any, node: Any, body: Any) -> int | None:
    """How often a Loop runs; None where values decide, or where it is too often."""
    limit = constant(graph, node.input[0]) if node.input[0] else None
    first = constant(graph, node.input[1]) if node.input[1] else True
    if limit is None or first is None or not bool(first) or not 0 < int(limit) <= MOST_ROUNDS:
        return None
    goes_on, makers = body.output[0].name, {name: one for one in body.node for name in one.output}
    while goes_on in makers and makers[goes_on].op_type == "Identity":
        goes_on = makers[goes_on].input[0]
    always = constant(body, goes_on) if goes_on in makers or any(t.name == goes_on for t in body.initializer) else constant(graph, goes_on)
    return int(limit) if goes_on == body.input[1].name or (always is not None and bool(always)) else None


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
