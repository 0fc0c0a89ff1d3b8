"""Rewrite .tflite files: fold constants to plain float32, make shapes static. Whole files in, whole files out."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgekit.errors import ConversionError
from edgekit.formats import tflite_flatbuffer, tflite_reader, tflite_sparse
from edgekit.tensors import Array

MAX_BYTES = 2**31 - 1

_DTYPES = {"FLOAT32": "float32", "FLOAT16": "float16", "INT8": "int8", "UINT8": "uint8", "INT16": "int16", "INT32": "int32", "INT64": "int64"}


def to_float(path: Path, out: Path) -> Path:
    """Fold constants to float32, and spell MediaPipe's transposed convolution as the built-in one; see `formats.tflite.to_float`."""

    def change(model: Any) -> None:
        _fold_constants(model)
        _use_builtin_transpose_conv(model)
        _name_ends(model)

    return rewrite(path, out, change)


def set_shapes(path: Path, shapes: Mapping[int, tuple[int, ...]], out: Path) -> Path:
    """Store `shapes` (by tensor index of the main graph) and drop every dynamic shape of that graph."""

    def change(model: Any) -> None:
        for index, tensor in enumerate(model.subgraphs[0].tensors):
            tensor.shape = list(shapes.get(index, _plain(tensor.shape)))
            tensor.shapeSignature = None

    return rewrite(path, out, change)


def rewrite(path: Path, out: Path, change: Callable[[Any], None]) -> Path:
    """Write `path` as `change` leaves its `ModelT`, without what nothing refers to then. Raises `ConversionError`."""
    if tflite_reader.read(path).external:  # reading also checks every offset and index that the object form below relies on
        raise ConversionError(f"{path.name}: its constants lie in files beside it", "store them in the .tflite file itself")
    data = path.read_bytes()
    with tflite_reader.damage_refused(path.name):
        model = tflite_flatbuffer.schema().ModelT.InitFromObj(tflite_flatbuffer.schema().Model.GetRootAs(data, 0))
        _inline(model, data)
        _modernize_codes(model)
        change(model)
        _drop_unused(model)
    packed = tflite_flatbuffer.dump(model)
    if len(packed) > MAX_BYTES:
        raise ConversionError(f"{path.name}: {len(packed)} bytes as float32, more than the 2 GiB that the format holds")
    return tflite_flatbuffer.write(out, packed)


def _inline(model: Any, data: bytes) -> None:
    import numpy as np

    for buffer in model.buffers:
        if buffer.offset > 1:
            buffer.data = np.frombuffer(data, np.uint8, buffer.size, buffer.offset)
        buffer.offset = buffer.size = 0


def _modernize_codes(model: Any) -> None:
    """Files from before 2020 have only the one-byte operator code; tools that read the newer field take every operator for an ADD."""
    for code in model.operatorCodes:
        code.builtinCode = max(code.builtinCode, code.deprecatedBuiltinCode)


def _fold_constants(model: Any) -> None:
    for graph in model.subgraphs:
        kept = []
        for operator in graph.operators or []:
            folded = _folded(model, graph, operator)
            if folded is None:
                kept.append(operator)
            else:
                _make_constant(model, graph.tensors[operator.outputs[0]], folded)
        graph.operators = kept


def _folded(model: Any, graph: Any, operator: Any) -> Array | None:
    """The operator's result, for a DENSIFY or DEQUANTIZE of a constant."""
    kind = _kind(model, operator)
    if kind not in ("DENSIFY", "DEQUANTIZE"):
        return None
    source = graph.tensors[operator.inputs[0]]
    stored = _constant(model, source)
    if stored is None:
        return None
    return stored if kind == "DENSIFY" else _dequantized(stored, source.quantization)


def _dequantized(stored: Array, quantization: Any) -> Array:
    import numpy as np

    scale = np.asarray(_plain(quantization.scale) if quantization else [], np.float32)
    if not scale.size:
        return stored.astype(np.float32)
    zero_point = np.asarray(_plain(quantization.zeroPoint) or [0] * scale.size, np.int64)
    if scale.size > 1:
        axes = [1] * stored.ndim
        axes[quantization.quantizedDimension] = scale.size
        scale, zero_point = scale.reshape(axes), zero_point.reshape(axes)
    return ((stored.astype(np.int64) - zero_point).astype(np.float32) * scale).astype(np.float32)


def _constant(model: Any, tensor: Any) -> Array | None:
    import numpy as np

    raw = model.buffers[tensor.buffer].data
    kind = tflite_reader.enum_names("TensorType")[tensor.type]
    if raw is None or not len(raw) or kind not in _DTYPES:
        return None
    values = np.asarray(raw, np.uint8).view(np.dtype(_DTYPES[kind]).newbyteorder("<"))
    shape = _plain(tensor.shape)
    return tflite_sparse.dense(values, shape, tensor.sparsity) if tensor.sparsity else values.reshape(shape)


def _use_builtin_transpose_conv(model: Any) -> None:
    """Convolution2DTransposeBias (input, filter, bias) becomes TRANSPOSE_CONV version 3 (output shape, filter, input, bias).

    Its custom options are three int32: padding (1 SAME, 2 VALID), stride width, stride height (LiteRT `xnnpack_delegate.cc`).
    """
    import numpy as np

    custom = [i for i, code in enumerate(model.operatorCodes) if code.customCode == b"Convolution2DTransposeBias"]
    for graph in model.subgraphs:
        for operator in (o for o in graph.operators if o.opcodeIndex in custom):
            padding, stride_w, stride_h = struct.unpack_from("<3i", bytes(operator.customOptions))
            shape = _new_tensor(model, graph, np.asarray(_plain(graph.tensors[operator.outputs[0]].shape), np.int32))
            activation, weights, bias = operator.inputs
            operator.inputs = [shape, weights, activation, bias]
            operator.opcodeIndex = tflite_flatbuffer.op_code(model, "TRANSPOSE_CONV", 3)
            operator.builtinOptionsType = tflite_flatbuffer.schema().BuiltinOptions.TransposeConvOptions
            operator.builtinOptions = tflite_flatbuffer.schema().TransposeConvOptionsT(padding - 1, stride_w, stride_h)
            operator.customOptions = None


def _name_ends(model: Any) -> None:
    """Give a file without a SignatureDef one of its tensor names: quantizers call models by signature."""
    graph, schema = model.subgraphs[0], tflite_flatbuffer.schema()
    ends = [[(graph.tensors[i].name, int(i)) for i in _plain(found)] for found in (graph.inputs, graph.outputs)]
    if model.signatureDefs or any(len(dict(named)) < len(named) for named in ends):
        return
    maps = [[schema.TensorMapT(name, index) for name, index in named] for named in ends]
    model.signatureDefs = [schema.SignatureDefT(*maps, signatureKey="serving_default")]


def _new_tensor(model: Any, graph: Any, values: Array) -> int:
    tensor = tflite_flatbuffer.schema().TensorT()
    tensor.name, tensor.shape, tensor.type = f"constant_{len(graph.tensors)}", list(values.shape), tflite_flatbuffer.schema().TensorType.INT32
    _make_constant(model, tensor, values)
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def _make_constant(model: Any, tensor: Any, values: Array) -> None:
    if list(values.shape) != _plain(tensor.shape):
        raise ValueError(f"a folded constant has shape {values.shape}, its tensor {_plain(tensor.shape)}")
    tensor.buffer = tflite_flatbuffer.add_constant(model, values)


def _kind(model: Any, operator: Any) -> str | None:
    code = model.operatorCodes[operator.opcodeIndex]
    return tflite_reader.enum_names("BuiltinOperator").get(max(code.builtinCode, code.deprecatedBuiltinCode))


def _drop_unused(model: Any) -> None:
    """Remove tensors, buffers and operator codes that nothing refers to any more."""
    for number, graph in enumerate(model.subgraphs):
        definitions = [d for d in model.signatureDefs or [] if d.subgraphIndex == number]
        _drop_tensors(graph, [m for d in definitions for m in (*(d.inputs or []), *(d.outputs or []))])
    operators = [o for graph in model.subgraphs for o in graph.operators or []]
    tensors = [t for graph in model.subgraphs for t in graph.tensors]
    codes = _renumber({o.opcodeIndex for o in operators})
    model.operatorCodes = [model.operatorCodes[old] for old in codes]
    for operator in operators:
        operator.opcodeIndex = codes[operator.opcodeIndex]
    used = {0, *(t.buffer for t in tensors), *(m.buffer for m in model.metadata or []), *(_plain(model.metadataBuffer))}
    buffers = _renumber(used)
    model.buffers = [model.buffers[old] for old in buffers]
    for holder in (*tensors, *(model.metadata or [])):
        holder.buffer = buffers[holder.buffer]
    model.metadataBuffer = [buffers[i] for i in _plain(model.metadataBuffer)] or None


def _drop_tensors(graph: Any, mapped: list[Any]) -> None:
    lists = [(graph, "inputs"), (graph, "outputs")]
    lists += [(o, name) for o in graph.operators or [] for name in ("inputs", "outputs", "intermediates")]
    details = [t.quantization.details for t in graph.tensors if t.quantization is not None and hasattr(t.quantization.details, "zeroPoints")]
    used = {i for holder, name in lists for i in _plain(getattr(holder, name))} | {m.tensorIndex for m in mapped}
    used |= {i for d in details for i in (d.scales, d.zeroPoints)}
    numbers = _renumber(i for i in used if i >= 0)
    for holder, name in lists:
        setattr(holder, name, [numbers.get(i, -1) for i in _plain(getattr(holder, name))] or None)
    for entry in mapped:
        entry.tensorIndex = numbers[entry.tensorIndex]
    for detail in details:
        detail.scales, detail.zeroPoints = numbers.get(detail.scales, -1), numbers.get(detail.zeroPoints, -1)
    graph.tensors = [graph.tensors[old] for old in numbers]


def _renumber(used: Any) -> dict[int, int]:
    return {old: new for new, old in enumerate(sorted(used))}


def _plain(values: Any) -> list[int]:
    return [] if values is None else [v.item() if hasattr(v, "item") else v for v in values]
