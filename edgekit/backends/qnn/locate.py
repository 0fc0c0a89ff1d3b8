"""Which operator the HTP refuses, where its provider does not say: the first one with which the graph up to it is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgekit.formats import _onnx_view
from edgekit.qdq import protos


def first_refused(proto: Any, refused: Callable[[Any], bool]) -> tuple[str, str] | None:
    """Type and name of the operator, found by halving: `refused` is asked about graphs that end behind an operator. None where all are taken."""
    operators = [index for index, node in enumerate(proto.graph.node) if not node.op_type.endswith("uantizeLinear")]
    ends = [*operators[1:], len(proto.graph.node)]
    low, high = 0, len(operators)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if refused(beginning(proto, ends[middle])) else (middle + 1, high)
    if low == len(operators):
        return None
    node = proto.graph.node[operators[low]]
    name = node.name or next(iter(node.output))
    return node.op_type, f"{name}, whose result has no dimensions" if _is_scalar(proto, operators[low]) else name


def beginning(proto: Any, end: int) -> Any:
    """The graph up to node `end` (exclusive); what the rest of it reads, or the whole gives, are its outputs."""
    import onnx

    made = protos.copy(proto)
    graph = made.graph
    rest, wanted = list(graph.node)[end:], [value.name for value in graph.output]
    given = {name for node in graph.node[:end] for name in node.output}
    read = dict.fromkeys([name for node in rest for name in node.input] + wanted)
    del graph.node[end:], graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in read if name in given)
    used = {name for node in graph.node for name in node.input}
    for values in (graph.initializer, graph.input):
        _keep(values, [value for value in values if value.name in used])
    return made


def _keep(values: Any, kept: Sequence[Any]) -> None:
    copies = [type(value).FromString(value.SerializeToString()) for value in kept]
    del values[:]
    values.extend(copies)


def _is_scalar(proto: Any, index: int) -> bool:
    """Whether what a node gives is a single number without dimensions."""
    graph = _onnx_view.graph(proto, 0)
    names = set(proto.graph.node[index].output)
    return any(tensor.name in names and tensor.shape == () and not tensor.constant for tensor in graph.tensors)
