"""Reading and writing `.tflite` files as objects of the schema that ai-edge-litert ships (LiteRT `schema.fbs` version 3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgekit.errors import ConversionError, require
from edgekit.tensors import DTYPES, Array

ALIGNMENT_BYTES = 16
"""The schema forces buffer data to this alignment; microcontroller runtimes rely on it, and Python's generated packing ignores it."""


def schema() -> Any:
    """The generated schema module."""
    return require("ai_edge_litert.schema_py_generated", extra="litert", purpose="reading .tflite files")


def load(content: bytes, name: str = "model") -> Any:
    """Parse a file's bytes into a mutable `ModelT`: external buffers resolved, empty buffers merged into buffer 0, vectors as lists.

    Raises `ConversionError` for bytes that are no LiteRT model.
    """
    tools = require("ai_edge_litert.tools.flatbuffer_utils", extra="litert", purpose="reading .tflite files")
    if content[4:8] != b"TFL3":
        raise ConversionError(f"{name}: not a LiteRT model (no TFL3 identifier)", "is the file complete?")
    try:
        model = tools.read_model_from_bytearray(bytearray(content))
    except Exception as error:  # the generated reader raises whatever a bad offset happens to hit
        raise ConversionError(f"{name}: damaged LiteRT model ({type(error).__name__})", "is the file complete?") from error
    if not model.subgraphs:
        raise ConversionError(f"{name}: LiteRT model without a graph", "convert it again")
    return model


def dump(model: Any) -> bytes:
    """Serialize a `ModelT` with its constants inside the flatbuffer and aligned, as every runtime reads them."""
    flatbuffers = require("flatbuffers", extra="litert", purpose="writing .tflite files")
    plain, model.buffers = model.buffers, [_AlignedBuffer(buffer) for buffer in model.buffers]
    try:
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())
    finally:
        model.buffers = plain


def merge_buffers(model: Any, *, share: bool = True) -> None:
    """Drop buffers that nothing refers to; with `share`, let tensors with equal constant data have one buffer."""
    kept: list[Any] = [schema().BufferT()]
    place: dict[Any, int] = {}
    moved: dict[int, int] = {}
    for owner in _buffer_owners(model):
        if owner.buffer not in moved:
            data = _bytes(model.buffers[owner.buffer].data)
            key = data if share else owner.buffer
            if data and key not in place:
                place[key] = len(kept)
                kept.append(model.buffers[owner.buffer])
            moved[owner.buffer] = place[key] if data else 0
        owner.buffer = moved[owner.buffer]
    model.buffers, model.metadataBuffer = kept, None


def constant(model: Any, tensor: Any) -> Array | None:
    """The constant data of a tensor in its shape and dtype (read-only), or None for an activation or a type numpy lacks."""
    import numpy as np

    data = model.buffers[tensor.buffer].data
    dtype = numpy_dtype(tensor.type)
    if data is None or len(data) == 0 or dtype is None:
        return None
    return np.frombuffer(_bytes(data), dtype).reshape([int(size) for size in tensor.shape] if tensor.shape is not None else [])


def data(model: Any, tensor: Any) -> Array:
    """The data of a tensor that is known to be constant. Raises `ConversionError` where it is not."""
    found = constant(model, tensor)
    if found is None:
        raise ConversionError(f"{text(tensor.name)}: no constant data")
    return found


def add_constant(model: Any, array: Array) -> int:
    """Append a buffer holding `array`; its index."""
    import numpy as np

    buffer = schema().BufferT()
    buffer.data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    model.buffers.append(buffer)
    return len(model.buffers) - 1


def numpy_dtype(tensor_type: int) -> str | None:
    """The numpy name of a schema tensor type, None where numpy has none (strings, 4-bit, resources)."""
    types = vars(schema().TensorType)
    return {types[name.upper()]: name for name in DTYPES}.get(tensor_type)


def op_name(model: Any, op: Any) -> str:
    """The builtin operator's name, as `CONV_2D`."""
    code = model.operatorCodes[op.opcodeIndex]
    number = max(code.builtinCode, code.deprecatedBuiltinCode)  # files before schema 3a hold the number in the old field
    names: dict[int, str] = {value: name for name, value in vars(schema().BuiltinOperator).items() if not name.startswith("_")}
    return names.get(number, f"OPERATOR_{number}")


def op_code(model: Any, name: str, version: int) -> int:
    """Index of a builtin operator's code of that version, appended when absent."""
    for index, code in enumerate(model.operatorCodes):
        if max(code.builtinCode, code.deprecatedBuiltinCode) == getattr(schema().BuiltinOperator, name) and code.version == version:
            return index
    code = schema().OperatorCodeT()
    code.builtinCode = getattr(schema().BuiltinOperator, name)
    code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    code.version = version
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def text(name: Any) -> str:
    """A schema string (bytes, str or None) as str."""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else (name or "")


def entry(name: str, index: int) -> Any:
    """One name of a signature, for a tensor index."""
    made = schema().TensorMapT()
    made.name, made.tensorIndex = name.encode(), index
    return made


def write(path: Path, content: bytes) -> Path:
    """Write a file through a temporary name, so that an interrupted run leaves nothing half-written."""
    partial = path.with_name(path.name + ".part")
    partial.write_bytes(content)
    return partial.replace(path)


def _buffer_owners(model: Any) -> Iterator[Any]:
    for graph in model.subgraphs:
        yield from graph.tensors
    yield from model.metadata or []


def _bytes(data: Any) -> bytes:
    return b"" if data is None else bytes(data) if isinstance(data, (bytes, bytearray, memoryview, list)) else data.tobytes()


class _AlignedBuffer:
    """Stands in for a `BufferT` while packing: same table, data aligned as the schema demands."""

    def __init__(self, buffer: Any) -> None:
        self.data = _bytes(buffer.data)

    def Pack(self, builder: Any) -> Any:  # noqa: N802 - the generated code calls this name
        made = schema()
        if not self.data:
            made.BufferStart(builder)
            return made.BufferEnd(builder)
        builder.StartVector(1, len(self.data), ALIGNMENT_BYTES)
        builder.head -= len(self.data)
        builder.Bytes[builder.head : builder.head + len(self.data)] = self.data
        data = builder.EndVector()
        made.BufferStart(builder)
        made.BufferAddData(builder, data)
        return made.BufferEnd(builder)
