"""The float network as the accelerator sees it: ONNX nodes in DPU forms, grouped into units (an operator and what is fused into it)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from edgekit.tensors import Array

FUSIBLE = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul")
ACTIVATIONS = ("Relu", "Clip", "LeakyRelu")
LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
VIEWS = ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Identity", "Pad")
ALIGNED = (*VIEWS, "MaxPool", "Concat")
"""Operators whose inputs and output share one position (the DPU moves values through them as they are)."""

MEANS = ("AveragePool", "GlobalAveragePool")
"""Their output has a position of its own: Vitis AI's reference of the DPU's pool shifts after the factor (vart, cpu-runner, pool-fix)."""

DPU = (*FUSIBLE, *ACTIVATIONS, *ALIGNED, *MEANS, "HardSigmoid", "Resize")

BEHIND = "behind an operator on the CPU, with no layer of the DPU after it"


@dataclasses.dataclass(frozen=True)
class Unit:
    """Nodes that leave one quantized tensor: an operator, factors and activation behind it. `reason` says why it stays on the CPU."""

    nodes: tuple[Any, ...]
    reason: str = ""
    suggestion: str = ""

    @property
    def head(self) -> Any:
        """The operator itself."""
        return self.nodes[0]

    @property
    def output(self) -> str:
        """What the unit leaves (its first output)."""
        return str(self.nodes[-1].output[0])

    @property
    def on_dpu(self) -> bool:
        """Whether the accelerator takes it."""
        return not self.reason


@dataclasses.dataclass(frozen=True)
class Net:
    """A network: nodes in order, constants by name, shapes of all tensors, and the names at its ends."""

    proto: Any
    nodes: tuple[Any, ...]
    constants: dict[str, Array]
    shapes: dict[str, tuple[int, ...]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def data(self, node: Any) -> list[str]:
        """The computed tensors that a node reads."""
        return [name for name in node.input if name and name not in self.constants]

    def readers(self) -> dict[str, list[Any]]:
        """The nodes that read each tensor."""
        found: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in self.data(node):
                found.setdefault(name, []).append(node)
        return found

    def unit_data(self, unit: Unit) -> list[str]:
        """The computed tensors that a unit reads from outside."""
        made = {name for node in unit.nodes for name in node.output}
        return list(dict.fromkeys(name for node in unit.nodes for name in self.data(node) if name not in made))


def of_proto(proto: Any) -> Net:
    """The network of a prepared `ModelProto` with static shapes."""
    import onnx

    proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    nodes = []
    for node in proto.graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = onnx.numpy_helper.to_array(next(a.t for a in node.attribute if a.name == "value"))
        else:
            nodes.append(node)
    values = (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    shapes = {value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim) for value in values}
    ends = [tuple(v.name for v in side if v.name not in constants) for side in (proto.graph.input, proto.graph.output)]
    return Net(proto, tuple(nodes), constants, shapes | {n: a.shape for n, a in constants.items()}, ends[0], ends[1])


def to_proto(net: Net, nodes: Iterable[Any], constants: dict[str, Array], *, metadata: dict[str, str] | None = None) -> Any:
    """A `ModelProto` of other nodes and constants between the same ends. Constants that nothing reads are left out."""
    import onnx

    listed = list(nodes)
    read = {name for node in listed for name in node.input} | set(net.outputs)
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in sorted(constants.items()) if name in read]
    inputs = [value for value in net.proto.graph.input if value.name in net.inputs]
    graph = onnx.helper.make_graph(listed, "dpu", inputs, list(net.proto.graph.output), stored)
    made = onnx.helper.make_model(graph, opset_imports=list(net.proto.opset_import), ir_version=min(net.proto.ir_version, 9), producer_name="edgekit")
    for key, value in sorted((metadata or {}).items()):
        made.metadata_props.add(key=key, value=value)
    return made


def attribute(node: Any, name: str, default: Any = None) -> Any:
    """An attribute's value."""
    import onnx

    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else onnx.helper.get_attribute_value(found)


def units(net: Net, judge: Any) -> tuple[Unit, ...]:
    """The network in units; `judge(net, nodes)` gives (reason, suggestion) where the accelerator refuses them, or None."""
    readers, taken = net.readers(), set[str]()
    found: list[Unit] = []
    for node in net.nodes:
        if node.output[0] in taken:
            continue
        nodes = _chain(net, node, readers)
        refused = judge(net, nodes)
        if refused and len(nodes) > 1:
            nodes = [node]
            refused = judge(net, nodes)
        taken |= {n.output[0] for n in nodes}
        reason, suggestion = refused or ("", "")
        found.append(Unit(tuple(nodes), reason, suggestion))
    return without_tails(net, found)


def without_tails(net: Net, found: Sequence[Unit]) -> tuple[Unit, ...]:
    """Units behind the CPU with no layer of the accelerator after them stay there: a way back would cost two copies and a rounding."""
    leading: set[str] = set()
    for unit in reversed(found):
        if any(name in leading for node in unit.nodes for name in node.output) or (unit.on_dpu and unit.head.op_type in LINEAR):
            leading |= set(net.unit_data(unit))
    left, made = set[str](), []
    for unit in found:
        layer = unit.head.op_type in LINEAR or any(name in leading for name in unit.nodes[-1].output)
        if unit.on_dpu and not layer and left & set(net.unit_data(unit)):
            unit = dataclasses.replace(unit, reason=BEHIND, suggestion="nothing: the DPU has no layer left to compute")
        left |= set() if unit.on_dpu else set(unit.nodes[-1].output)
        made.append(unit)
    return tuple(made)


def _chain(net: Net, node: Any, readers: dict[str, list[Any]]) -> list[Any]:
    nodes = [node]
    follows: tuple[str, ...] = {"GlobalAveragePool": ("Mul",), "AveragePool": ("Mul",), "HardSigmoid": ("Mul",)}.get(node.op_type, ())
    if node.op_type in FUSIBLE:
        follows = ACTIVATIONS
    following = _only(net, node.output[0], readers)
    if following is not None and following.op_type in follows and following.input[0] == node.output[0]:
        factor = [net.constants[name] for name in following.input[1:] if name in net.constants]
        if following.op_type != "Mul" or (len(factor) == 1 and factor[0].size == 1):
            nodes.append(following)
    return nodes


def _only(net: Net, name: str, readers: dict[str, list[Any]]) -> Any | None:
    found: Sequence[Any] = readers.get(name, ())
    return found[0] if len(found) == 1 and name not in net.outputs else None
