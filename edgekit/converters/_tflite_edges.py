"""The edges of a .tflite file: names, order and layout of inputs and outputs, rewritten in the flatbuffer itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekit.errors import require

SIGNATURE = "serving_default"
_ALIGNMENT = 16
"""Constants start at multiples of 16 bytes in a .tflite file (`force_align: 16` of LiteRT's schema.fbs); XNNPACK reads them in place."""


def rename(data: bytes, inputs: Sequence[tuple[int, str]], outputs: Sequence[tuple[int, str]]) -> bytes:
    """Give the model one signature with these (tensor index, name) pairs, in this order; the tensors keep their own names."""
    schema = _schema()
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    graph = model.subgraphs[0]
    graph.inputs = [index for index, _ in inputs]
    graph.outputs = [index for index, _ in outputs]
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = SIGNATURE, 0
    signature.inputs = [_entry(schema, index, name) for index, name in inputs]
    signature.outputs = [_entry(schema, index, name) for index, name in outputs]
    model.signatureDefs = [signature]
    return pack(model)


def signature_tensors(data: bytes) -> tuple[dict[str, int], dict[str, int]]:
    """Tensor index by name for the inputs and the outputs of the file's first signature, in its own order."""
    signature = _schema().Model.GetRootAs(data, 0).SignatureDefs(0)
    inputs = [signature.Inputs(i) for i in range(signature.InputsLength())]
    outputs = [signature.Outputs(i) for i in range(signature.OutputsLength())]
    return {t.Name().decode(): t.TensorIndex() for t in inputs}, {t.Name().decode(): t.TensorIndex() for t in outputs}


def pack(model: Any) -> bytes:
    """Serialize a `ModelT` with aligned constants."""
    import flatbuffers

    schema = _schema()
    model.buffers = [_aligned(schema, buffer) for buffer in model.buffers]
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def write(path: Path, data: bytes) -> Path:
    """Write under a temporary name, then rename."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    return part.replace(path)


def _aligned(schema: Any, buffer: Any) -> Any:
    import numpy as np

    class Aligned(schema.BufferT):  # type: ignore[misc]  # a generated class
        def Pack(self, builder: Any) -> Any:  # noqa: N802  # the generated classes' name
            return _pack_buffer(schema, builder, self)

    made = Aligned()
    made.data = None if buffer.data is None else np.asarray(buffer.data, np.uint8)
    made.offset, made.size = buffer.offset, buffer.size
    return made


def _pack_buffer(schema: Any, builder: Any, buffer: Any) -> Any:
    """A `Buffer` table whose byte vector is aligned, which the generated code does not do."""
    at = None
    if buffer.data is not None and len(buffer.data):
        builder.StartVector(1, len(buffer.data), _ALIGNMENT)
        builder.head -= len(buffer.data)
        builder.Bytes[builder.head : builder.head + len(buffer.data)] = buffer.data.tobytes()
        at = builder.EndVector()
    schema.BufferStart(builder)
    if at is not None:
        schema.BufferAddData(builder, at)
    return schema.BufferEnd(builder)


def _entry(schema: Any, index: int, name: str) -> Any:
    entry = schema.TensorMapT()
    entry.tensorIndex, entry.name = index, name
    return entry


def _schema() -> Any:
    return require("ai_edge_litert.schema_py_generated", extra="litert", purpose="writing a .tflite file")
