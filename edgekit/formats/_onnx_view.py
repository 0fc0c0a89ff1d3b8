"""The operators of an ONNX graph, for verdicts and reports: attributes, small constants, and what is quantized around each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgekit.errors import require
from edgekit.graph import Graph, GraphTensor, Operator
from edgekit.tensors import Array

SMALL = 16
"""Integer constants of at most this many elements are given with the operator that reads them, in `constant_inputs`."""

STEPS = frozenset(("QuantizeLinear", "DequantizeLinear"))


def read(path: Path) -> Graph:
    """The graph of an .onnx file."""
    onnx = require("onnx", extra="onnx", purpose="reading an ONNX model")
    return graph(onnx.load(path), path.stat().st_size)


def graph(proto: Any, file_bytes: int) -> Graph:
    """Operators, tensors and multiply-accumulates of a `ModelProto`'s main graph. Constant nodes are tensors, not operators.

    An operator whose inputs are dequantized, or whose output is quantized, says so: attribute `stored_inputs` holds the dtype behind each
    input (empty where there is none), `stored_outputs` the one each output becomes, `channel_inputs` the positions with a scale per channel.
    """
    main = proto.graph
    values = {tensor.name: tensor for tensor in main.initializer} | _constants(main)
    nodes = [node for node in main.node if not set(node.output) <= set(values)]
    steps, shapes = _steps(main, values), _shapes(_inferred(_castlike(proto, values)).graph)
    names = list(dict.fromkeys([*(v.name for v in main.input), *(n for node in nodes for n in (*node.input, *node.output) if n)]))
    tensors = tuple(_tensor(name, shapes, values, steps) for name in names)
    place = {name: index for index, name in enumerate(names)}
    made = _Reading(tensors, place, proto, values)
    operators = tuple(made.operator(index, node) for index, node in enumerate(nodes))
    inputs = tuple(place[v.name] for v in main.input if v.name not in values)
    outputs = tuple(place[v.name] for v in main.output if v.name in place)
    return Graph("onnx", tensors, operators, inputs, outputs, file_bytes)


class _Reading:
    def __init__(self, tensors: tuple[GraphTensor, ...], place: dict[str, int], proto: Any, values: dict[str, Any]) -> None:
        self._tensors, self._place, self._values = tensors, place, values
        self._versions = {o.domain or "ai.onnx": o.version for o in proto.opset_import}
        self._produced, self._quantized = _behind(proto.graph)

    def operator(self, index: int, node: Any) -> Operator:
        inputs = tuple(self._place[name] if name else -1 for name in node.input)
        outputs = tuple(self._place[name] for name in node.output if name)
        custom = node.domain not in ("", "ai.onnx", "ai.onnx.ml")
        name = node.name or next((n for n in node.output if n), node.op_type)
        attributes = {**_attributes(node), **self._constants(node), **self._quantization(node)}
        return Operator(index, node.op_type, self._version(node), name, inputs, outputs, attributes, self._macs(node, inputs, outputs), custom)

    def _version(self, node: Any) -> int:
        """The operator set version from which the node's operator is as it is here."""
        import onnx

        version = self._versions.get(node.domain or "ai.onnx", 1)
        try:
            return int(onnx.defs.get_schema(node.op_type, version, node.domain).since_version)
        except onnx.defs.SchemaError:  # of a domain that onnx does not define
            return int(version)

    def _constants(self, node: Any) -> dict[str, Any]:
        import onnx

        found = {}
        for position, name in enumerate(node.input):
            tensor = self._values.get(name)
            if tensor is not None and math.prod(tensor.dims) <= SMALL and tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.FLOAT):
                found[position] = onnx.numpy_helper.to_array(tensor).reshape(-1).tolist()
        return {"constant_inputs": found} if found else {}

    def _quantization(self, node: Any) -> dict[str, Any]:
        if node.op_type in STEPS:
            return {}
        before = [self._produced.get(name) for name in node.input]
        after = [self._quantized.get(name) for name in node.output if name]
        if not any(before) and not any(after):
            return {}
        dtypes = [self._dtype(step.input[0]) if step is not None else "" for step in before]
        wide = [i for i, step in enumerate(before) if step is not None and len(self._scales(step)) > 1]
        outputs = [self._dtype(step.output[0]) if step is not None else "" for step in after]
        return {"stored_inputs": dtypes, "stored_outputs": outputs, "channel_inputs": wide}

    def _dtype(self, name: str) -> str:
        return self._tensors[self._place[name]].dtype

    def _scales(self, step: Any) -> tuple[float, ...]:
        return self._tensors[self._place[step.input[0]]].scale

    def _macs(self, node: Any, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> int:
        if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul") or len(inputs) < 2 or not outputs:
            return 0
        weight, data, result = (self._tensors[i].shape for i in (inputs[1], inputs[0], outputs[0]))
        if -1 in (*weight, *data, *result):
            return 0
        if node.op_type == "Conv":
            return math.prod(result) * math.prod(weight[1:])
        if node.op_type == "ConvTranspose":
            return math.prod(data) * math.prod(weight[1:])
        return math.prod(result) * (data[-1] if data else 0)


def _inferred(proto: Any) -> Any:
    """With shapes as far as onnx finds them: following values through small constants sometimes contradicts itself, and is left out then."""
    import onnx

    for follow in (True, False):
        try:
            return onnx.shape_inference.infer_shapes(proto, data_prop=follow)
        except onnx.shape_inference.InferenceError:
            continue
    return proto


def _castlike(proto: Any, values: Mapping[str, Any]) -> Any:
    """A copy for shape inference, which does not know onnxruntime's own Q and DQ: they keep the shape and change the type, as a Cast does."""
    import onnx

    made = type(proto)()
    made.CopyFrom(proto)
    for node in made.graph.node:
        if node.op_type in STEPS and node.domain not in ("", "ai.onnx"):
            quantizes = node.op_type == "QuantizeLinear" and len(node.input) > 2 and node.input[2] in values
            dtype = values[node.input[2]].data_type if quantizes else onnx.TensorProto.FLOAT
            node.op_type, node.domain = "Cast", ""
            del node.input[1:], node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("to", dtype))
    return made


def _constants(made: Any) -> dict[str, Any]:
    """The tensors that Constant nodes hold."""
    nodes = (node for node in made.node if node.op_type == "Constant")
    return {node.output[0]: a.t for node in nodes for a in node.attribute if a.name == "value"}


def _attributes(node: Any) -> dict[str, Any]:
    """Numbers, texts and lists of them; tensors and bodies of control flow are left out."""
    import onnx

    plain = (onnx.AttributeProto.INT, onnx.AttributeProto.FLOAT, onnx.AttributeProto.STRING, onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS)
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.type in plain}
    return {name: v.decode() if isinstance(v, bytes) else list(v) if not isinstance(v, int | float) else v for name, v in found.items()}


def _behind(made: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The DequantizeLinear that computes a value, and the QuantizeLinear that alone reads one."""
    produced = {node.output[0]: node for node in made.node if node.op_type == "DequantizeLinear"}
    readers: dict[str, list[Any]] = {}
    for node in made.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    quantized = {name: nodes[0] for name, nodes in readers.items() if len(nodes) == 1 and nodes[0].op_type == "QuantizeLinear"}
    return produced, quantized


def _steps(made: Any, values: Mapping[str, Any]) -> dict[str, tuple[Array, Array | None, int]]:
    """Scale, zero point and axis of every stored (integer) value."""
    import onnx

    found = {}
    for node in made.node:
        if node.op_type not in STEPS or len(node.input) < 2 or node.input[1] not in values:
            continue
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        zero = node.input[2] if len(node.input) > 2 else ""
        name = node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]
        read = onnx.numpy_helper.to_array
        found[name] = (read(values[node.input[1]]), read(values[zero]) if zero in values else None, axis)
    return found


def _shapes(made: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    import onnx

    found = {}
    for value in (*made.input, *made.value_info, *made.output):
        kind = value.type.tensor_type
        shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim)
        found[value.name] = (shape, str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)) if kind.elem_type else "")
    return found


def _tensor(name: str, shapes: Mapping[str, Any], values: Mapping[str, Any], steps: Mapping[str, Any]) -> GraphTensor:
    import onnx

    scale, zero, axis = steps.get(name, (None, None, 0))
    scales = tuple(float(x) for x in scale.reshape(-1)) if scale is not None else ()
    zeros = tuple(int(x) for x in zero.reshape(-1)) if zero is not None else (0,) * len(scales)
    axis = axis if len(scales) > 1 else 0
    if name in values:
        tensor = values[name]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        stored = len(tensor.raw_data) or math.prod(tensor.dims) * dtype.itemsize
        return GraphTensor(name, tuple(tensor.dims), str(dtype), scales, zeros, axis, constant=True, stored_bytes=stored)
    shape, kind = shapes.get(name, ((), ""))
    return GraphTensor(name, shape, kind, scales, zeros, axis)
