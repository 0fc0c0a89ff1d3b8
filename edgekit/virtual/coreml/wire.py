"""A bounds-checked reader of the protocol-buffer wire format, driven by small tables of field numbers.

Source of the format: https://protobuf.dev/programming-guides/encoding. Only what a Core ML specification uses is read; unknown fields are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

MAX_DEPTH = 64
"""Messages nested deeper than this are refused: control flow nests by a few levels, an attack by thousands."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are not a well-formed message."""


class Field(NamedTuple):
    """One known field: how to name it, how to read it (`kind`), whether it repeats. `message` is the table of a nested message."""

    name: str
    kind: str
    repeated: bool = False
    message: Callable[[], Table] | None = None


Table = dict[int, Field]


def fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """(field number, wire type, value) of each field; a value is an int for numbers and a view for length-delimited data.

    Raises `WireError` for what no message can be.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            value, at = varint(data, at)
            yield number, wire_type, value
            continue
        if wire_type == BYTES:
            size, at = varint(data, at)
        elif wire_type in (FIXED64, FIXED32):
            size = 8 if wire_type == FIXED64 else 4
        else:
            raise WireError(f"wire type {wire_type} in field {number}")
        if number == 0 or size > end - at:
            raise WireError(f"field {number} takes {size} bytes, but {end - at} are left")
        yield number, wire_type, data[at : at + size]
        at += size


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """The unsigned number at `at`, and the position behind it. Raises `WireError` where it runs past the end."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise WireError("a number runs past the end of the data")


def decode(data: memoryview, table: Table, depth: int = 0) -> dict[str, Any]:
    """The known fields of a message by name; repeated ones as lists, maps as dicts, absent ones left out. Raises `WireError`."""
    if depth > MAX_DEPTH:
        raise WireError(f"messages nest deeper than {MAX_DEPTH}")
    out: dict[str, Any] = {}
    for number, wire_type, value in fields(data):
        field = table.get(number)
        if field is None:
            continue
        if field.kind == "map":
            entry = decode(_view(value, field), _entry(field), depth + 1)
            out.setdefault(field.name, {})[entry.get("key", "")] = entry.get("value", {})
        elif field.repeated:
            out.setdefault(field.name, []).extend(_items(value, wire_type, field, depth))
        else:
            out[field.name] = _one(value, field, depth)
    return out


def _entry(field: Field) -> Table:
    return {1: Field("key", "string"), 2: Field("value", "message", message=field.message)}


def _view(value: int | memoryview, field: Field) -> memoryview:
    if isinstance(value, int):
        raise WireError(f"{field.name} is a number where bytes belong")
    return value


def _items(value: int | memoryview, wire_type: int, field: Field, depth: int) -> list[Any]:
    packed = wire_type == BYTES and field.kind in _PACKED
    return list(_PACKED[field.kind](_view(value, field))) if packed else [_one(value, field, depth)]


def _one(value: int | memoryview, field: Field, depth: int) -> Any:
    kind = field.kind
    if kind == "message":
        assert field.message is not None
        return decode(_view(value, field), field.message(), depth + 1)
    if kind == "string":
        return _text(_view(value, field))
    if kind == "bytes":
        return bytes(_view(value, field))
    if kind in ("float", "double"):
        return _floats(_view(value, field), "f" if kind == "float" else "d")[0]
    if not isinstance(value, int):
        raise WireError(f"{field.name} is bytes where a number belongs")
    return _SCALARS[kind](value)


def _text(value: memoryview) -> str:
    try:
        return bytes(value).decode("utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"a name is not UTF-8: {error}") from error


def _floats(value: memoryview, code: str) -> tuple[float, ...]:
    size = struct.calcsize(code)
    if not len(value) or len(value) % size:
        raise WireError(f"{len(value)} bytes are no whole number of {size}-byte floats")
    return struct.unpack(f"<{len(value) // size}{code}", value)


def _varints(value: memoryview) -> Iterator[int]:
    at = 0
    while at < len(value):
        number, at = varint(value, at)
        yield number


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


_SCALARS: dict[str, Callable[[int], Any]] = {"int": _signed, "uint": int, "bool": bool}

_PACKED: dict[str, Callable[[memoryview], Any]] = {
    "int": lambda view: map(_signed, _varints(view)),
    "uint": _varints,
    "bool": lambda view: map(bool, _varints(view)),
    "float": lambda view: _floats(view, "f") if len(view) else (),
    "double": lambda view: _floats(view, "d") if len(view) else (),
}
