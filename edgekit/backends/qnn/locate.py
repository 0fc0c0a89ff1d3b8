"""Which operators the HTP refuses, and why; where its provider does not say which, the first one with which the graph up to it is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgekit import opset
from edgekit.errors import RunnerError
from edgekit.formats import _onnx_view
from edgekit.hostruntimes import onnxruntime_qnn
from edgekit.qdq import protos

LATER = {"LSTM": 69}
"""First generation with which the simulator finalizes an operator that an older one does not."""

NAMED = 5
"""Operators that a message names."""


def not_taken(proto: Any, error: RunnerError, model: Path, arch: int, soc_model: int) -> str:
    """The operators that the provider leaves to the CPU, each with its layer and a reason, from `model`, the file of `proto` that was refused."""

    def refused(part: Any) -> bool:
        (trial := model.with_name("part.onnx")).write_bytes(part.SerializeToString())
        try:
            onnxruntime_qnn.session(trial, arch, soc_model)
        except RunnerError:
            return True
        finally:
            trial.unlink()
        return False

    left = _computing(onnxruntime_qnn.left_over(model, arch, soc_model))
    if not left:
        found = first_refused(proto, refused)
        return f"{found[0]} in layer {found[1]}: {_lacking(found[0], arch) or error.message}" if found else f"the model: {error.message}"
    reasons = {verdict.name: verdict.reason for verdict in opset.judge(_onnx_view.read(model), "hexagon") if verdict.reason}
    forms = {node.name: form(proto, node) for node in proto.graph.node}

    def reason(kind: str, name: str) -> str:
        return _lacking(kind, arch) or reasons.get(name) or f"refused in this form: {forms.get(name, 'no attributes')}"

    return ", ".join(f"{kind} in layer {name} ({reason(kind, name)})" for kind, name in left[:NAMED])


def form(proto: Any, node: Any) -> str:
    """Attributes of a node, and which of its inputs are constants."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    parts = [f"{name}={value}" for name, value in protos.attributes(node).items() if not hasattr(value, "ByteSize")]
    computed = [str(place) for place, name in enumerate(node.input) if name and name not in stored]
    return ", ".join([*parts, f"inputs {' and '.join(computed)} computed"] if computed else parts) or "no attributes"


def _lacking(kind: str, arch: int) -> str:
    first = LATER.get(kind, 0)
    return f"Hexagon v{arch} does not finalize it, v{first} and later do: choose a newer target, or unroll it" if arch < first else ""


def _computing(found: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(kind, name) for kind, name in found if not kind.endswith("uantizeLinear")]


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
