"""Constants as stored: whole-byte dtypes, and integers of 1, 2, 3, 4 and 6 bits packed from the least significant bit on."""

from __future__ import annotations

import math
from pathlib import Path

from edgekit.errors import BundleError
from edgekit.tensors import Array

SUB_BYTE = {"uint1": 1, "uint2": 2, "uint3": 3, "uint4": 4, "int4": 4, "uint6": 6}

WHOLE = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
}


def stored_bytes(dtype: str, elements: int) -> int:
    """Bytes that `elements` of `dtype` take. Raises `BundleError` for a type that no weight has."""
    if dtype in SUB_BYTE:
        return math.ceil(SUB_BYTE[dtype] * elements / 8)
    if dtype not in WHOLE:
        raise BundleError(f"a stored constant cannot be of type {dtype or 'unknown'}")
    return WHOLE[dtype] * elements


def read(path: Path, offset: int, length: int) -> bytes:
    """`length` bytes of a file at `offset`."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def unpack(data: bytes, dtype: str, shape: tuple[int, ...]) -> Array:
    """The array that `data` holds; sub-byte integers come as int8 or uint8. Raises `BundleError` when the byte count does not fit."""
    import numpy as np

    elements = math.prod(shape)
    if len(data) != stored_bytes(dtype, elements):
        raise BundleError(f"a constant {dtype}{list(shape)} takes {stored_bytes(dtype, elements)} bytes, not {len(data)}")
    if dtype in SUB_BYTE:
        values = bits(np.frombuffer(data, np.uint8), SUB_BYTE[dtype], elements)
        return (np.where(values > 7, values - 16, values).astype(np.int8) if dtype == "int4" else values.astype(np.uint8)).reshape(shape)
    stored = np.frombuffer(data, np.dtype(dtype if dtype != "bool" else np.uint8).newbyteorder("<")).reshape(shape)
    return stored.astype(np.bool_) if dtype == "bool" else stored.astype(dtype, copy=False)


def bits(data: Array, width: int, elements: int) -> Array:
    """`elements` unsigned integers of `width` bits as int16, packed from the least significant bit of each byte on."""
    import numpy as np

    stream = np.unpackbits(data, bitorder="little")[: width * elements].reshape(elements, width)
    return stream.astype(np.int16) @ (1 << np.arange(width, dtype=np.int16))
