"""Read a .tflite flatbuffer into a `Graph`, with the schema but without the interpreter. The bytes are treated as hostile.

The schema is the one that ai-edge-litert ships (`ai_edge_litert.schema_py_generated`, LiteRT `schema.fbs` version 3).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from edgekit.errors import ConversionError, UsageError
from edgekit.formats import tflite_flatbuffer, tflite_macs
from edgekit.graph import Graph, GraphTensor, Operator

T = TypeVar("T")

IDENTIFIER = b"TFL3"
SMALL_CONSTANT = 64
"""Integer constants of up to this many elements (axes, paddings, shapes) are kept with their operator."""

_BITS = {"int2": 2, "int4": 4, "uint4": 4, "float64": 64, "int64": 64, "uint64": 64, "complex64": 64, "complex128": 128}
_BITS |= {"float32": 32, "int32": 32, "uint32": 32, "float16": 16, "bfloat16": 16, "int16": 16, "uint16": 16, "int8": 8, "uint8": 8, "bool": 8}


@dataclasses.dataclass(frozen=True)
class Port:
    """One input or output of a signature: its name, its tensor (an index of `Graph.tensors`), and the shape and dtype the file stores (no -1)."""

    name: str
    tensor: int
    stored_shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True)
class Entry:
    """How the model is called: `key` names the SignatureDef, None for a file without one (tensor names are used then); `subgraph` runs."""

    key: str | None
    subgraph: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


@dataclasses.dataclass(frozen=True)
class File:
    """A parsed file. `sparse` holds the indices of tensors stored sparsely; `external` the files beside it that hold constants."""

    graph: Graph
    entry: Entry
    sparse: frozenset[int]
    external: tuple[Path, ...]


def read(path: Path) -> File:
    """Parse `path`. Raises `UsageError` when it cannot be read, `ConversionError` when it is truncated, corrupt or not TFLite."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})", "is it a file, and yours to read?") from error
    return parse(data, path)


def parse(data: bytes, path: Path) -> File:
    """Parse the bytes of `path`. Raises `ConversionError`."""
    if data[4:8] != IDENTIFIER:
        found = f"bytes 4 to 8 are {data[4:8]!r}, not {IDENTIFIER!r}"
        raise ConversionError(f"{path.name}: not a TFLite file ({found})", "is the file complete, or a pointer to one?")
    with damage_refused(path.name):
        return _Reader(data, path).file()


@contextlib.contextmanager
def damage_refused(name: str) -> Iterator[None]:
    """Turn whatever a broken flatbuffer makes the accessors raise into one `ConversionError`."""
    try:
        yield
    except (struct.error, LookupError, ValueError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise ConversionError(f"{name}: the file is truncated or corrupt ({error})", "export or download it again") from error


def stored_size(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Bytes of a dense constant; None for a type without a fixed size (string, resource, variant)."""
    bits = _BITS.get(dtype)
    return None if bits is None else (math.prod(shape) * bits + 7) // 8


@cache
def enum_names(enum: str) -> dict[int, str]:
    """The schema's names of an enumeration by value."""
    return {value: name for name, value in vars(getattr(tflite_flatbuffer.schema(), enum)).items() if not name.startswith("_")}


class _Reader:
    """Walks the accessors of one file. Vectors may overlap in a hostile file, so what is read in all is bounded by the file's size."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.data, self.path = data, path
        self.allowance = len(data) + 1024
        self.model = tflite_flatbuffer.schema().Model.GetRootAs(data, 0)
        self.buffers = self.vector(self.model.BuffersLength(), self.model.Buffers)
        self.codes = self.vector(self.model.OperatorCodesLength(), self.model.OperatorCodes)
        self.externals = {e.Id(): e for e in self.vector(self.model.ExternalBuffersLength(), self.model.ExternalBuffers)}

    def vector(self, length: int, item: Callable[[int], T]) -> list[T]:
        self.spend(length)
        return [item(i) for i in range(length)]

    def spend(self, count: int) -> None:
        self.allowance -= count
        if self.allowance < 0:
            raise ValueError(f"its vectors claim more than the {len(self.data)} bytes there are")

    def array(self, value: Any) -> tuple[Any, ...]:
        """A numeric vector; the accessors give 0 for an absent one."""
        if isinstance(value, int):
            return ()
        self.spend(len(value))
        return tuple(value.tolist())

    def file(self) -> File:
        graphs = self.vector(self.model.SubgraphsLength(), self.model.Subgraphs)
        if not graphs:
            raise ValueError("it holds no graph")
        tensors: list[GraphTensor] = []
        operators: list[Operator] = []
        bases: list[int] = []
        flats: list[Any] = []
        for number, graph in enumerate(graphs):
            bases.append(len(tensors))
            mine = self.vector(graph.TensorsLength(), graph.Tensors)
            flats += mine
            tensors += [self.tensor(flat) for flat in mine]
            for flat in self.vector(graph.OperatorsLength(), graph.Operators):
                operators.append(self.operator(flat, len(operators), number, bases[-1], tensors, flats))
        entry = self.entry(graphs, bases, tensors, flats)
        graph = Graph(
            "tflite",
            tuple(tensors),
            tuple(operators),
            tuple(port.tensor for port in entry.inputs),
            tuple(port.tensor for port in entry.outputs),
            len(self.data) + sum(external.Length() for external in self.externals.values()),
            len(graphs),
        )
        sparse = frozenset(i for i, flat in enumerate(flats) if flat.Sparsity() is not None)
        return File(graph, entry, sparse, self.external_files())

    def tensor(self, flat: Any) -> GraphTensor:
        dtype = enum_names("TensorType")[flat.Type()].lower()
        stored = self.array(flat.ShapeAsNumpy())
        size = self.constant_size(flat)
        if any(n < 0 for n in stored) or (size and flat.Sparsity() is None and stored_size(dtype, stored) not in (None, size)):
            raise ValueError(f"tensor {_text(flat.Name())} is {dtype}{list(stored)} but stores {size} bytes")
        quantization = flat.Quantization()
        scale = self.array(quantization.ScaleAsNumpy()) if quantization else ()
        zero_point = self.array(quantization.ZeroPointAsNumpy()) if quantization else ()
        signature = self.array(flat.ShapeSignatureAsNumpy())
        shape = signature if len(signature) == len(stored) and not size else stored
        axis = quantization.QuantizedDimension() if quantization else 0
        return GraphTensor(_text(flat.Name()), shape, dtype, scale, zero_point if scale else (), axis, bool(size), size)

    def constant_size(self, flat: Any) -> int:
        if flat.ExternalBuffer():
            return int(self.externals[flat.ExternalBuffer()].Length())
        buffer = self.buffers[flat.Buffer()]
        if buffer.Offset() > 1:  # beyond the flatbuffer, in the same file
            if buffer.Offset() + buffer.Size() > len(self.data):
                raise ValueError(f"tensor {_text(flat.Name())} lies past the end of the file")
            return int(buffer.Size())
        length = int(buffer.DataLength())
        return len(buffer.DataAsNumpy()) if length else 0

    def operator(self, flat: Any, index: int, subgraph: int, base: int, tensors: list[GraphTensor], flats: list[Any]) -> Operator:
        code = self.codes[flat.OpcodeIndex()]
        builtin = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        custom = enum_names("BuiltinOperator").get(builtin) == "CUSTOM"
        kind = _text(code.CustomCode()) if custom else enum_names("BuiltinOperator").get(builtin, f"BUILTIN_{builtin}")
        inputs = self.indices(flat.InputsAsNumpy(), base, len(tensors), optional=True)
        outputs = self.indices(flat.OutputsAsNumpy(), base, len(tensors))
        attributes = self.attributes(flat)
        if subgraph:
            attributes["subgraph"] = subgraph
        values = {n: self.integers(tensors[i], flats[i]) for n, i in enumerate(inputs) if i >= 0 and _is_small_integer(tensors[i])}
        if values:
            attributes["constant_inputs"] = values
        name = tensors[outputs[0]].name if outputs else f"{kind} {index}"
        macs = tflite_macs.of(kind, [tensors[i] if i >= 0 else None for i in inputs], [tensors[i] for i in outputs], attributes)
        return Operator(index, kind, code.Version(), name, inputs, outputs, attributes, macs, custom)

    def indices(self, value: Any, base: int, count: int, *, optional: bool = False) -> tuple[int, ...]:
        found = self.array(value)
        if any(not (-1 if optional else 0) <= i < count - base for i in found):
            raise ValueError(f"an operator refers to a tensor that does not exist: {list(found)} of {count - base}")
        return tuple(i + base if i >= 0 else -1 for i in found)

    def attributes(self, flat: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for kind, options, create in (
            (flat.BuiltinOptionsType(), flat.BuiltinOptions(), tflite_flatbuffer.schema().BuiltinOptionsCreator),
            (flat.BuiltinOptions2Type(), flat.BuiltinOptions2(), tflite_flatbuffer.schema().BuiltinOptions2Creator),
        ):
            if options is not None and kind:
                made = create(kind, options)
                found |= {_snake(key): _plain(key, value) for key, value in vars(made).items()} if made is not None else {}
        if flat.CustomOptionsLength():
            self.spend(flat.CustomOptionsLength())
            found["custom_options"] = bytes(flat.CustomOptionsAsNumpy())
        return found

    def integers(self, tensor: GraphTensor, flat: Any) -> tuple[int, ...]:
        import numpy as np

        if flat.ExternalBuffer():
            return ()
        buffer = self.buffers[flat.Buffer()]
        raw = self.data[buffer.Offset() : buffer.Offset() + buffer.Size()] if buffer.Offset() > 1 else buffer.DataAsNumpy().tobytes()
        return tuple(np.frombuffer(raw, np.dtype(tensor.dtype).newbyteorder("<")).tolist())

    def entry(self, graphs: list[Any], bases: list[int], tensors: list[GraphTensor], flats: list[Any]) -> Entry:
        definitions = self.vector(self.model.SignatureDefsLength(), self.model.SignatureDefs)
        if definitions:
            chosen = next((d for d in definitions if d.SignatureKey() == b"serving_default"), definitions[0])
            base = bases[chosen.SubgraphIndex()]
            ports = [
                [(_text(m.Name()), m.TensorIndex() + base) for m in self.vector(length, item)]
                for length, item in ((chosen.InputsLength(), chosen.Inputs), (chosen.OutputsLength(), chosen.Outputs))
            ]
            return Entry(_text(chosen.SignatureKey()), chosen.SubgraphIndex(), *(_ports(named, flats, self) for named in ports))
        ports = [[(tensors[i].name, i) for i in self.array(found)] for found in (graphs[0].InputsAsNumpy(), graphs[0].OutputsAsNumpy())]
        return Entry(None, 0, *(_ports(named, flats, self) for named in ports))

    def external_files(self) -> tuple[Path, ...]:
        groups = self.vector(self.model.ExternalBufferGroupsLength(), self.model.ExternalBufferGroups)
        names = [_text(groups[e.Group()].Name()) for e in self.externals.values()]
        if any(not name or PurePosixPath(name).name != name or "\\" in name or "\0" in name for name in names):
            raise ValueError(f"it keeps constants in files outside its folder: {sorted(set(names))}")
        for external, name in zip(self.externals.values(), names, strict=True):
            beside = self.path.parent / name
            if not beside.is_file() or external.Offset() + external.Length() > beside.stat().st_size:
                raise ValueError(f"the constants that should lie in {name} beside it are missing or cut off")
        return tuple(self.path.parent / name for name in sorted(set(names)))


def _ports(named: list[tuple[str, int]], flats: list[Any], reader: _Reader) -> tuple[Port, ...]:
    if any(not 0 <= index < len(flats) for _, index in named):
        raise ValueError("its signature refers to a tensor that does not exist")
    types = enum_names("TensorType")
    return tuple(Port(name, index, reader.array(flats[index].ShapeAsNumpy()), types[flats[index].Type()].lower()) for name, index in named)


def _is_small_integer(tensor: GraphTensor) -> bool:
    return tensor.constant and tensor.dtype in ("int32", "int64") and math.prod(tensor.shape) <= SMALL_CONSTANT


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: "_" + found[1].lower(), name)


_ENUMS = {"fusedActivationFunction": "ActivationFunctionType", "padding": "Padding", "weightsFormat": "FullyConnectedOptionsWeightsFormat"}
_ENUMS |= {"inDataType": "TensorType", "outDataType": "TensorType", "mode": "MirrorPadMode", "kernelType": "LSTMKernelType"}


def _plain(key: str, value: Any) -> Any:
    if key in _ENUMS and isinstance(value, int):
        return enum_names(_ENUMS[key]).get(value, value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
