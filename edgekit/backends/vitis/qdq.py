"""Writing QDQ ONNX: int8 tensors of power-of-two scales between QuantizeLinear and DequantizeLinear, weights and biases stored as int8."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from edgekit.backends.vitis.equalize import is_level
from edgekit.backends.vitis.net import Net, Unit, to_proto
from edgekit.tensors import Array


@dataclasses.dataclass(frozen=True)
class Stored:
    """A constant as int8 integers of a position."""

    integers: Array
    position: int


@dataclasses.dataclass
class Writer:
    """Nodes and constants of a QDQ graph under construction."""

    net: Net
    positions: Mapping[str, int]
    params: Mapping[tuple[str, int], Stored]
    nodes: list[Any] = dataclasses.field(default_factory=list)
    constants: dict[str, Array] = dataclasses.field(default_factory=dict)

    def scale(self, position: int) -> list[str]:
        """The names of a scale and its zero point."""
        import numpy as np

        self.constants[f"dpu/scale_{position}"] = np.array(2.0**-position, np.float32)
        self.constants["dpu/zero"] = np.array(0, np.int8)
        return [f"dpu/scale_{position}", "dpu/zero"]

    def add(self, kind: str, inputs: list[str], output: str) -> None:
        """A plain node."""
        import onnx

        self.nodes.append(onnx.helper.make_node(kind, inputs, [output], name=output))

    def quantize(self, name: str) -> None:
        """Quantize `name`'s real value."""
        self.add("QuantizeLinear", [real(self.net, name), *self.scale(self.positions[name])], f"{name}/int8")

    def dequantize(self, name: str) -> None:
        """Give `name` as the real value of its int8 tensor."""
        self.add("DequantizeLinear", [f"{name}/int8", *self.scale(self.positions[name])], seen(self.net, name))

    def unit(self, unit: Unit) -> None:
        """The unit's nodes over dequantized inputs and constants, and the quantizer of what it leaves."""
        made = {name for node in unit.nodes for name in node.output}
        for node in unit.nodes:
            inputs = [self._input(unit, node, index, made) for index in range(len(node.input))]
            if (unit.output, 2) in self.params and node is unit.head and len(inputs) == 2:
                inputs.append(self._constant(unit, 2))
            self._copy(node, inputs, unit)
        for name in unit.nodes[-1].output:
            if name in self.positions:
                self.quantize(name)

    def _input(self, unit: Unit, node: Any, index: int, made: set[str]) -> str:
        name = str(node.input[index])
        if node is unit.head and (unit.output, index) in self.params:
            return self._constant(unit, index)
        if name in self.net.constants:
            self.constants[name] = self.net.constants[name]
        return name if name in made or not name else seen(self.net, name, quantized=name in self.positions)

    def _constant(self, unit: Unit, index: int) -> str:
        stored, name = self.params[unit.output, index], f"{unit.output}/const{index}"
        self.constants[f"{name}/int8"] = stored.integers
        self.add("DequantizeLinear", [f"{name}/int8", *self.scale(stored.position)], name)
        return name

    def _copy(self, node: Any, inputs: list[str], unit: Unit) -> None:
        import onnx

        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.input[:], copy.output[:]
        if node.op_type == "MatMul" and len(inputs) == 3:
            copy.op_type = "Gemm"
        if node.op_type == "Clip" and is_level(float(self.net.constants[node.input[2]])):
            copy.op_type, inputs = "Relu", inputs[:1]
        copy.input.extend(inputs)
        copy.output.extend(real(self.net, name) if name in self.positions else name for name in node.output)
        copy.name = copy.output[0]
        self.nodes.append(copy)


def real(net: Net, name: str) -> str:
    """The name of a quantized tensor's value before its quantizer."""
    return name if name in net.inputs else f"{name}/real"


def seen(net: Net, name: str, *, quantized: bool = True) -> str:
    """The name under which readers find a tensor."""
    return f"{name}/dq" if quantized and name in net.inputs else name


def write(net: Net, units: Sequence[Unit], positions: Mapping[str, int], params: Mapping[tuple[str, int], Stored], metadata: dict[str, str]) -> Any:
    """The whole network as a QDQ `ModelProto`."""
    import onnx

    writer = Writer(net, positions, params)
    for name in net.inputs:
        if name in positions:
            writer.quantize(name)
            writer.dequantize(name)
    for unit in units:
        writer.unit(unit)
        for name in unit.nodes[-1].output:
            if name in positions:
                writer.dequantize(name)
    made = to_proto(net, writer.nodes, writer.constants, metadata=metadata)
    onnx.checker.check_model(made)
    return made


def single(net: Net, unit: Unit, positions: Mapping[str, int], params: Mapping[tuple[str, int], Stored], metadata: dict[str, str]) -> Any:
    """One unit of the accelerator from int8 tensors to int8 tensors, named as in the whole."""
    import onnx

    writer = Writer(net, positions, params)
    names = [name for name in net.unit_data(unit) if name in positions]
    for name in names:
        writer.dequantize(name)
    writer.unit(unit)
    kind = onnx.TensorProto.INT8
    inputs = [onnx.helper.make_tensor_value_info(f"{name}/int8", kind, net.shapes[name]) for name in names]
    outputs = [onnx.helper.make_tensor_value_info(f"{name}/int8", kind, net.shapes[name]) for name in unit.nodes[-1].output]
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in writer.constants.items()]
    graph = onnx.helper.make_graph(writer.nodes, "unit", inputs, outputs, stored)
    made = onnx.helper.make_model(graph, opset_imports=list(net.proto.opset_import), ir_version=9)
    for key, value in metadata.items():
        made.metadata_props.add(key=key, value=value)
    return made
