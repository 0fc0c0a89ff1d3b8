"""Element-wise operators between two transpositions, moved to the layout in front of them: the accelerator is spared both."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgekit.backends.vitis.net import Net, attribute
from edgekit.tensors import Array

TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
"""From channels first to channels last, and back."""

ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh")


@dataclasses.dataclass
class _Work:
    """Nodes under construction. `first` gives the channels-first form of tensors that are channels last, `same` other names of tensors."""

    net: Net
    constants: dict[str, Array]
    shapes: dict[str, tuple[int, ...]]
    nodes: list[Any] = dataclasses.field(default_factory=list)
    first: dict[str, str] = dataclasses.field(default_factory=dict)
    same: dict[str, str] = dataclasses.field(default_factory=dict)
    made: set[str] = dataclasses.field(default_factory=set)


def channels_first(net: Net) -> Net:
    """The same network with element-wise operators on channels-first images, where a transposition before them came from there.

    Exact. A tensor that something else reads channels last (or an output of the network) gets its transposition where it is read.
    """
    work = _Work(net, dict(net.constants), dict(net.shapes))
    for node in net.nodes:
        _node(work, node)
    for name in net.outputs:
        _last(work, name)
    return dataclasses.replace(net, nodes=tuple(work.nodes), constants=work.constants, shapes=work.shapes)


def _node(work: _Work, node: Any) -> None:
    source, name = (work.same.get(node.input[0], node.input[0]) if node.input else ""), node.output[0]
    if node.op_type == "Transpose" and attribute(node, "perm") == TO_LAST:
        work.first[name] = source
    elif node.op_type == "Transpose" and attribute(node, "perm") == TO_FIRST and node.input[0] in work.first and name not in work.net.outputs:
        work.same[name] = work.first[node.input[0]]
    elif node.op_type == "Reshape" and _is_vector_turned(work.net, node):
        work.first[name] = source
        _keep(work, node)
    elif node.op_type in ELEMENTWISE and (inputs := _first_inputs(work, node)) is not None:
        moved = _copy(node, inputs, f"{name}/channels_first")
        shape = work.net.shapes[name]
        work.shapes[moved.output[0]] = (shape[0], shape[3], shape[1], shape[2])
        work.first[name] = moved.output[0]
        work.nodes.append(moved)
    else:
        _keep(work, node)


def _keep(work: _Work, node: Any) -> None:
    """The node as it is, on what its inputs are called now."""
    inputs = [work.same.get(name, name) for name in node.input]
    if node.output[0] not in work.first:
        for name in inputs:
            _last(work, name)
    work.nodes.append(_copy(node, inputs, *node.output))
    work.made |= set(node.output)


def _last(work: _Work, name: str) -> None:
    """See that a tensor that moved is there channels last too."""
    import onnx

    if name in work.first and name not in work.made:
        work.nodes.append(onnx.helper.make_node("Transpose", [work.first[name]], [name], name=name, perm=TO_LAST))
        work.made.add(name)


def _first_inputs(work: _Work, node: Any) -> list[str] | None:
    """What the node reads when it works channels first; None where it cannot. The bounds of a Clip stay."""
    if len(work.net.shapes.get(node.output[0], ())) != 4 or len(node.output) != 1:
        return None
    data = node.input[:1] if node.op_type == "Clip" else node.input
    if not any(name in work.first and work.net.shapes.get(name) == work.net.shapes[node.output[0]] for name in data):
        return None
    found = []
    for name in data:
        moved = work.first.get(name) if name not in work.constants else _constant_first(work, name)
        if moved is None:
            return None
        found.append(moved)
    return [*found, *node.input[len(data) :]]


def _constant_first(work: _Work, name: str) -> str | None:
    values = work.constants[name]
    if values.size == 1 or (values.ndim < 4 and values.size != values.shape[-1]):
        return name if values.size == 1 else None
    full = values.reshape((1,) * (4 - values.ndim) + values.shape).transpose(TO_FIRST)
    work.constants[f"{name}/channels_first"], work.shapes[f"{name}/channels_first"] = full.copy(), full.shape
    return f"{name}/channels_first"


def _is_vector_turned(net: Net, node: Any) -> bool:
    """Whether a Reshape only moves the channels of a 1x1 image to the end."""
    before, after = net.shapes.get(node.input[0], ()), net.shapes.get(node.output[0], ())
    return len(before) == len(after) == 4 and before[2:] == (1, 1) and after == (before[0], 1, 1, before[1])


def _copy(node: Any, inputs: list[str], *outputs: str) -> Any:
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.input[:], copy.output[:]
    copy.input.extend(inputs)
    copy.output.extend(outputs)
    copy.name = outputs[0]
    return copy
