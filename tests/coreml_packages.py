"""Writes small ML Program packages byte by byte, from the published field numbers: a witness independent of the reader under test."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {"bool": 1, "string": 2, "float16": 10, "float32": 11, "int8": 21, "int16": 22, "int32": 23, "int4": 25, "uint8": 31, "uint16": 32}
DTYPES |= {"uint32": 33, "uint4": 35, "uint2": 36, "uint1": 37, "uint6": 38, "uint3": 39}
FEATURES = {"float16": 65552, "float32": 65568, "int32": 131104}
BLOBS = {"float16": 1, "float32": 2, "uint8": 3, "int8": 4, "int4": 8, "uint1": 9, "uint2": 10, "uint4": 11, "uint3": 12, "uint6": 13}
BITS = {"uint1": 1, "uint2": 2, "uint3": 3, "uint4": 4, "int4": 4, "uint6": 6}


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def text(field: int, value: str) -> bytes:
    return message(field, value.encode())


def tensor_type(dtype: str, shape: Sequence[int]) -> bytes:
    sizes = b"".join(message(3, message(1, number(1, n)) if n >= 0 else message(2, b"")) for n in shape)
    return message(1, number(1, DTYPES[dtype]) + number(2, len(shape)) + sizes)


def named(name: str, dtype: str, shape: Sequence[int]) -> bytes:
    return text(1, name) + message(2, tensor_type(dtype, shape))


def literal(value: Any, dtype: str = "") -> bytes:
    """A `Value` message with the value inside."""
    if isinstance(value, str):
        return message(2, tensor_type("string", ())) + message(3, message(1, message(4, text(1, value))))
    array = np.asarray(value)
    dtype = dtype or {"b": "bool", "i": "int32", "f": "float32"}[array.dtype.kind]
    if dtype == "bool":
        payload = message(3, message(1, bytes(array.astype(np.uint8).tobytes())))
    elif dtype == "float32":
        payload = message(1, message(1, array.astype("<f4").tobytes()))
    elif dtype == "int32":
        payload = message(2, message(1, b"".join(varint(int(x)) for x in array.flatten())))
    else:
        payload = message(7, message(1, stored(array, dtype)))
    return message(2, tensor_type(dtype, array.shape)) + message(3, message(1, payload))


def stored(array: np.ndarray, dtype: str) -> bytes:
    if dtype in BITS:
        width = BITS[dtype]
        bits = [(int(x) >> k) & 1 for x in array.flatten() for k in range(width)]
        return np.packbits(np.array(bits, np.uint8), bitorder="little").tobytes()
    return array.astype(dtype).tobytes()


class Weights:
    """A weight file in MIL blob storage, version 2."""

    def __init__(self) -> None:
        self.data = bytearray(struct.pack("<II", 0, 2).ljust(64, b"\0"))

    def add(self, array: Any, dtype: str) -> bytes:
        """A `Value` message that points to the array."""
        array = np.asarray(array)
        raw = stored(array, dtype)
        offset = len(self.data)
        self.data += struct.pack("<IIQQ", 0xDEADBEEF, BLOBS[dtype], len(raw), offset + 64).ljust(64, b"\0") + raw
        self.data += b"\0" * (-len(self.data) % 64)
        return message(2, tensor_type(dtype, array.shape)) + message(5, text(1, "@model_path/weights/weight.bin") + number(2, offset))


def operation(
    kind: str,
    name: str,
    inputs: Mapping[str, Any],
    outputs: Sequence[bytes],
    attributes: Mapping[str, bytes] | None = None,
    blocks: Sequence[bytes] = (),
) -> bytes:
    """An `Operation`: an input is a name, a list of names, or an encoded `Value` (bytes)."""
    out = text(1, kind)
    for parameter, bound in inputs.items():
        items = bound if isinstance(bound, list) else [bound]
        bindings = b"".join(message(1, text(1, item) if isinstance(item, str) else message(2, item)) for item in items)
        out += message(2, text(1, parameter) + message(2, bindings))
    out += b"".join(message(3, item) for item in outputs) + b"".join(message(4, block) for block in blocks)
    for key, value in {"name": literal(name), **(attributes or {})}.items():
        out += message(5, text(1, key) + message(2, value))
    return out


def block(operations: Sequence[bytes], outputs: Sequence[str], inputs: Sequence[bytes] = ()) -> bytes:
    return b"".join(message(1, x) for x in inputs) + b"".join(text(2, x) for x in outputs) + b"".join(message(3, x) for x in operations)


def feature(name: str, dtype: str, shape: Sequence[int]) -> bytes:
    sizes = message(1, b"".join(varint(n) for n in shape)) if shape and min(shape) >= 0 else b""
    return text(1, name) + message(3, message(5, sizes + number(2, FEATURES[dtype])))


def model(
    inputs: Mapping[str, tuple[str, Sequence[int]]], outputs: Mapping[str, str], body: bytes, version: int = 8, opset: str = "CoreML7"
) -> bytes:
    """A `Model` with one function; `inputs` name -> (dtype, shape), `outputs` name -> dtype."""
    taken = b"".join(message(1, named(name, dtype, shape)) for name, (dtype, shape) in inputs.items())
    function = taken + text(2, opset) + message(3, text(1, opset) + message(2, body))
    program = number(1, 1) + message(2, text(1, "main") + message(2, function))
    description = b"".join(message(1, feature(n, d, s)) for n, (d, s) in inputs.items())
    description += b"".join(message(10, feature(n, d, ())) for n, d in outputs.items())
    return number(1, version) + message(2, description) + message(502, program)


def write(folder: Path, data: bytes, weights: bytes | None = None) -> Path:
    """The package on disk."""
    inner = folder / "Data" / "com.apple.CoreML"
    (inner / "weights").mkdir(parents=True)
    (inner / "model.mlmodel").write_bytes(data)
    if weights is not None:
        (inner / "weights" / "weight.bin").write_bytes(weights)
    entries = {"A": {"author": "com.apple.CoreML", "name": "model.mlmodel", "path": "com.apple.CoreML/model.mlmodel"}}
    (folder / "Manifest.json").write_text(json.dumps({"fileFormatVersion": "1.0.0", "itemInfoEntries": entries, "rootModelIdentifier": "A"}))
    return folder


def one_operator(
    folder: Path,
    kind: str,
    inputs: Mapping[str, tuple[str, Sequence[int]]],
    output: tuple[str, Sequence[int]],
    parameters: Mapping[str, Any] | None = None,
    tuple_input: str = "",
) -> Path:
    """A package of one operator: its tensors are program inputs, its parameters literals (an array or text, or (array, dtype))."""
    bound: dict[str, Any] = {tuple_input: list(inputs)} if tuple_input else {name: name for name in inputs}
    for name, value in (parameters or {}).items():
        bound[name] = literal(*value) if isinstance(value, tuple) else literal(value)
    body = block([operation(kind, f"layer_{kind}", bound, [named("y", *output)])], ["y"])
    dtype = output[0] if output[0] in FEATURES else "float32" if output[0].startswith("float") else "int32"
    return write(folder, model(inputs, {"y": dtype}, body))
