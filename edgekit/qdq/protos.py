"""Small readings and changes of an ONNX graph that the rest of the package shares."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from edgekit.errors import ConversionError, first_line, require
from edgekit.tensors import Array, Arrays

THREADS = 2

QUANTIZING = frozenset(("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "MatMulInteger", "ConvInteger"))
"""Operators that compute with quantized activations."""


def copy(proto: Any) -> Any:
    """An independent copy of a `ModelProto`."""
    made = type(proto)()
    made.CopyFrom(proto)
    return made


def attributes(node: Any) -> dict[str, Any]:
    """A node's attributes as Python values; bytes as text."""
    import onnx

    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def constants(proto: Any) -> dict[str, Array]:
    """Initializers by name."""
    import onnx

    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def constants_of(proto: Any, *names: str) -> dict[str, Array]:
    """The initializers of these names, no others read."""
    import onnx

    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer if tensor.name in names}


def set_constant(proto: Any, name: str, value: Array) -> None:
    """Give the initializer `name` another value, or add it."""
    import onnx

    tensor = onnx.numpy_helper.from_array(value, name)
    for index, known in enumerate(proto.graph.initializer):
        if known.name == name:
            proto.graph.initializer[index].CopyFrom(tensor)
            return
    proto.graph.initializer.append(tensor)


def set_narrow(proto: Any, name: str) -> None:
    """Store the int8 initializer `name` as int4: values of -8 to 7, two in a byte."""
    import onnx

    tensor = next(t for t in proto.graph.initializer if t.name == name)
    values = onnx.numpy_helper.to_array(tensor).reshape(-1)
    tensor.CopyFrom(onnx.helper.make_tensor(name, onnx.TensorProto.INT4, tensor.dims, values))


def free_names(proto: Any, prefix: str) -> Iterator[str]:
    """Names that no value of the graph has: `prefix` and a number."""
    graph = proto.graph
    taken = {name for node in graph.node for name in (*node.input, *node.output)} | {value.name for value in (*graph.input, *graph.initializer)}
    return (name for number in itertools.count() if (name := f"{prefix}{number}") not in taken)


def producers(nodes: Sequence[Any]) -> dict[str, int]:
    """Which node computes a value."""
    return {name: index for index, node in enumerate(nodes) for name in node.output if name}


def consumers(nodes: Sequence[Any]) -> dict[str, list[int]]:
    """Which nodes read a value, in order, once each."""
    found: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        for name in dict.fromkeys(name for name in node.input if name):
            found.setdefault(name, []).append(index)
    return found


def ranks(proto: Any) -> dict[str, int]:
    """Number of axes of each value, as far as ONNX infers it."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(proto).graph
    return {v.name: len(v.type.tensor_type.shape.dim) for v in (*inferred.input, *inferred.value_info, *inferred.output)}


def opset(proto: Any) -> int:
    """Version of the standard operator set."""
    return next(int(o.version) for o in proto.opset_import if o.domain in ("", "ai.onnx"))


def canonical(proto: Any) -> Any:
    """A copy in which constants are initializers, nodes have distinct names, and every convolution has a bias to correct, one number an output."""
    import onnx

    made = copy(proto)
    graph = made.graph
    kept = []
    for node in graph.node:
        value = attributes(node).get("value") if node.op_type == "Constant" else None
        if value is None:
            kept.append(node)
        else:
            tensor = onnx.TensorProto()
            tensor.CopyFrom(value)
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
    copies = [type(node).FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)
    _name_nodes(graph)
    _add_biases(made)
    _spread_biases(made)
    _own_constants(made)
    return made


def session(proto: Any) -> Any:
    """The model in onnxruntime, with exact graph optimizations only. Raises `ConversionError`."""
    ort = require("onnxruntime", extra="onnx", purpose="running an ONNX model")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises its own types
        raise ConversionError(f"onnxruntime refuses the model: {first_line(error)}") from error


def part(proto: Any, start: int, end: int, values: Arrays, outputs: Iterable[str]) -> Any:
    """The nodes from `start` to `end` (exclusive) as a model of its own that reads `values` (names, types and ranks) and gives `outputs`.

    Sizes are left open: they may differ from sample to sample.
    """
    import onnx
    from onnx import helper

    nodes = proto.graph.node[start:end]
    read = {name for node in nodes for name in node.input}
    made = onnx.ModelProto()
    made.ir_version = proto.ir_version
    made.opset_import.extend(proto.opset_import)
    made.graph.name = "part"
    made.graph.node.extend(nodes)
    made.graph.initializer.extend(t for t in proto.graph.initializer if t.name in read)
    kind = helper.np_dtype_to_tensor_dtype
    made.graph.input.extend(helper.make_tensor_value_info(n, kind(v.dtype), [None] * v.ndim) for n, v in values.items())
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)  # onnxruntime infers their types
    return made


def _name_nodes(graph: Any) -> None:
    taken: set[str] = set()
    for index, node in enumerate(graph.node):
        name = node.name or next((o for o in node.output if o), node.op_type)
        node.name = name if name not in taken else f"{name}_{index}"
        taken.add(node.name)


def _add_biases(proto: Any) -> None:
    import numpy as np

    shapes = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type not in ("Conv", "ConvTranspose") or (len(node.input) > 2 and node.input[2]) or node.input[1] not in shapes:
            continue
        shape = shapes[node.input[1]]
        outputs = shape[0] if node.op_type == "Conv" else shape[1] * int(attributes(node).get("group", 1))
        del node.input[2:]
        node.input.append(f"{node.name}/bias")
        set_constant(proto, node.input[2], np.zeros(outputs, np.float32))


def _spread_biases(proto: Any) -> None:
    """One number that is added to every output of a matrix product becomes one for each, so that each can be corrected."""
    import numpy as np

    values = constants(proto)
    for node in proto.graph.node:
        if node.op_type != "Gemm" or len(node.input) < 3 or node.input[1] not in values or node.input[2] not in values:
            continue
        outputs = values[node.input[1]].shape[0 if attributes(node).get("transB", 0) else 1]
        bias = values[node.input[2]]
        if bias.size == 1 != outputs:
            node.input[2] = f"{node.name}/bias"
            set_constant(proto, node.input[2], np.full(outputs, bias.reshape(-1)[0], bias.dtype))


def _own_constants(proto: Any) -> None:
    """Weights and biases of linear layers that several nodes share get a copy each."""
    seen: set[str] = set()
    values = constants(proto)
    for node in proto.graph.node:
        if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            seen |= set(node.input)
            continue
        for position, name in enumerate(node.input):
            if position and name in seen and name in values:
                node.input[position] = f"{node.name}/{name}"
                set_constant(proto, node.input[position], values[name])
            seen.add(name)
