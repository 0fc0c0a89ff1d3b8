"""The operators of an artifact's QDQ model, for verdicts and reports."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from edgekit.errors import require
from edgekit.graph import Graph, GraphTensor, Operator
from edgekit.qdq import protos
from edgekit.tensors import Array


def graph(folder: Path) -> Graph:
    """Operators, tensors and multiply-accumulates of `model.onnx` in an artifact folder.

    Operators are marked as confirmed: there is no artifact unless the simulator took and finalized every one of them.
    """
    onnx = require("onnx", extra="onnx", purpose="reading an ONNX model")
    path = folder / "model.onnx"
    proto = onnx.shape_inference.infer_shapes(onnx.load(path))
    values, shapes = protos.constants(proto), {}
    for value in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output):
        kind = value.type.tensor_type
        dims = tuple(d.dim_value or -1 for d in kind.shape.dim)
        shapes[value.name] = (dims, str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)) if kind.elem_type else "float32")
    steps = {name: node.input for node in proto.graph.node if node.op_type.endswith("uantizeLinear") for name in (node.input[0], node.output[0])}
    read = [name for node in proto.graph.node for name in (*node.input, *node.output) if name]
    names = list(dict.fromkeys([*(v.name for v in proto.graph.input), *read]))
    tensors = tuple(_tensor(name, shapes, values, steps) for name in names)
    place = {name: i for i, name in enumerate(names)}
    operators = tuple(_operator(i, node, place, tensors, protos.opset(proto)) for i, node in enumerate(proto.graph.node))
    ends = tuple(tuple(place[v.name] for v in part) for part in (proto.graph.input, proto.graph.output))
    return Graph("onnx", tensors, operators, ends[0], ends[1], path.stat().st_size)


def _tensor(name: str, shapes: dict[str, Any], values: dict[str, Array], steps: dict[str, Any]) -> GraphTensor:
    scale = tuple(float(x) for x in values[steps[name][1]].reshape(-1)) if name in steps and name.endswith("/stored") else ()
    zero = tuple(int(x) for x in values[steps[name][2]].reshape(-1)) if scale else ()
    if name in values:
        stored = values[name]
        return GraphTensor(name, tuple(stored.shape), stored.dtype.name, scale, zero, constant=True, stored_bytes=stored.nbytes)
    shape, dtype = shapes.get(name, ((), "float32"))
    return GraphTensor(name, shape, dtype, scale, zero)


def _operator(index: int, node: Any, place: dict[str, int], tensors: tuple[GraphTensor, ...], version: int) -> Operator:
    inputs = tuple(place[name] if name else -1 for name in node.input)
    outputs = tuple(place[name] for name in node.output if name)
    macs = _macs(node, [tensors[i] for i in inputs if i >= 0], tensors[outputs[0]])
    return Operator(index, node.op_type, version, node.name, inputs, outputs, {**protos.attributes(node), "confirmed": True}, macs)


def _macs(node: Any, inputs: list[GraphTensor], output: GraphTensor) -> int:
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul") or len(inputs) < 2 or -1 in output.shape:
        return 0
    weight, elements = inputs[1].shape, math.prod(output.shape)
    if node.op_type == "Conv":
        return elements * math.prod(weight[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(inputs[0].shape) * math.prod(weight[1:])
    return elements * (inputs[0].shape[-1] if inputs[0].shape else 0)
