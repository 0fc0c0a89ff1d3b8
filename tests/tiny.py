"""Tiny models with known answers, written node by node: what the executors are checked against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Spec = tuple[str, str, tuple[int, ...]]
"""Name, dtype, shape (-1: open)."""
Node = tuple[str, Sequence[str], Sequence[str]]
"""Operator, inputs, outputs."""

TFLITE_TYPES = {"float32": 0, "float16": 1, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int16": 7, "int8": 9, "uint16": 16}


def write_tflite(
    path: Path,
    tensors: Sequence[Spec],
    nodes: Sequence[Node],
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    constants: Mapping[str, Any] | None = None,
    signature: Mapping[str, str] | None = None,
    scale: float | None = None,
) -> Path:
    """Write a TFLite model. `signature` maps signature names to tensor names; `scale` quantizes every int8 tensor with zero point 0."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    index = {name: i for i, (name, _, _) in enumerate(tensors)}
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.buffers, model.operatorCodes = 3, [schema.BufferT()], []
    graph.tensors, graph.operators = [_tensor(schema, model, spec, (constants or {}).get(spec[0]), scale) for spec in tensors], []
    graph.inputs, graph.outputs = [index[x] for x in inputs], [index[x] for x in outputs]
    for kind, takes, gives in nodes:
        graph.operators.append(_operator(schema, model, kind, [index[x] for x in takes], [index[x] for x in gives]))
    model.subgraphs = [graph]
    if signature:
        model.signatureDefs = [_signature(schema, signature, index, inputs)]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path


def _tensor(schema: Any, model: Any, spec: Spec, constant: Any, scale: float | None) -> Any:
    name, dtype, shape = spec
    tensor = schema.TensorT()
    tensor.name, tensor.type, tensor.shape = name, TFLITE_TYPES[dtype], [abs(x) for x in shape]
    if -1 in shape:
        tensor.shapeSignature = list(shape)
    if constant is not None:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(np.asarray(constant, dtype).tobytes(), np.uint8)
        tensor.buffer = len(model.buffers)
        model.buffers.append(buffer)
    else:
        tensor.buffer = 0
    if scale is not None and dtype == "int8":
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale, tensor.quantization.zeroPoint = [scale], [0]
    return tensor


def _operator(schema: Any, model: Any, kind: str, takes: list[int], gives: list[int]) -> Any:
    code = schema.OperatorCodeT()
    number = getattr(schema.BuiltinOperator, kind)
    code.builtinCode, code.deprecatedBuiltinCode, code.version = number, min(number, 127), 1
    operator = schema.OperatorT()
    operator.opcodeIndex, operator.inputs, operator.outputs = len(model.operatorCodes), takes, gives
    model.operatorCodes.append(code)
    options = f"{kind.title()}Options"
    if kind in ("ADD", "SUB", "MUL", "DIV", "RESHAPE", "TRANSPOSE"):
        operator.builtinOptionsType, operator.builtinOptions = getattr(schema.BuiltinOptions, options), getattr(schema, options + "T")()
    return operator


def _signature(schema: Any, names: Mapping[str, str], index: Mapping[str, int], inputs: Sequence[str]) -> Any:
    definition = schema.SignatureDefT()
    definition.signatureKey, definition.subgraphIndex, definition.inputs, definition.outputs = b"serving_default", 0, [], []
    for name, tensor in names.items():
        entry = schema.TensorMapT()
        entry.name, entry.tensorIndex = name, index[tensor]
        (definition.inputs if tensor in inputs else definition.outputs).append(entry)
    return definition


def write_onnx(path: Path, inputs: Sequence[Spec], outputs: Sequence[Spec], nodes: Sequence[Node], **attributes: Any) -> Path:
    """Write an ONNX model; `attributes` go to every node."""
    import onnx
    from onnx import helper

    def values(specs: Sequence[Spec]) -> list[Any]:
        kind = helper.np_dtype_to_tensor_dtype
        return [helper.make_tensor_value_info(n, kind(np.dtype(d)), ["open" if x < 0 else x for x in s]) for n, d, s in specs]

    made = [helper.make_node(kind, list(takes), list(gives), **attributes) for kind, takes, gives in nodes]
    graph = helper.make_graph(made, "tiny", values(inputs), values(outputs))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
