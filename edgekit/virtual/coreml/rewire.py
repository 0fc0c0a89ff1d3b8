"""Appending to a specification as it is on disk: nothing else in the file changes, and no library of Apple's is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from edgekit.virtual.coreml import schema, spec, wire

Place = tuple[int, Callable[[memoryview], bool]]
"""One step of a path: a field number, and which of the fields of that number it is."""

FEATURES = {dtype: number for number, dtype in schema.FEATURE_DTYPES.items() if dtype in ("float16", "float32", "int32")}
"""What an interface can give out since iOS 16, by dtype."""


def with_outputs(data: bytes, program: spec.Program, outputs: Iterable[spec.Named]) -> bytes:
    """The specification with more outputs, behind its own: `outputs` are results of the main block, of a dtype in `FEATURES`."""
    view, wanted = memoryview(data), tuple(outputs)
    names = b"".join(_message(2, item.name.encode()) for item in wanted)
    block: list[Place] = [(502, _any), (2, _keyed(program.function)), (2, _any), (3, _keyed(program.opset)), (2, _any)]
    made = _appended(view, block, names)
    if program.listed:
        described = b"".join(_message(3, _feature(item)) for item in wanted)
        return _appended(memoryview(made), [(2, _any), (20, _keyed(program.function))], described)
    return _appended(memoryview(made), [(2, _any)], b"".join(_message(10, _feature(item)) for item in wanted))


def _appended(data: memoryview, path: list[Place], more: bytes) -> bytes:
    """`data` with the fields `more` at the end of the message that `path` leads to."""
    if not path:
        return bytes(data) + more
    (wanted, chosen), *rest = path
    out = bytearray()
    for number, wire_type, value in wire.fields(data):
        if isinstance(value, int):
            out += _varint(number << 3 | wire_type) + _varint(value)
        elif wire_type == wire.BYTES:
            out += _message(number, _appended(value, rest, more) if number == wanted and chosen(value) else value)
        else:
            out += _varint(number << 3 | wire_type) + value
    return bytes(out)


def _any(value: memoryview) -> bool:
    del value
    return True


def _keyed(key: str) -> Callable[[memoryview], bool]:
    """Entries of a map, and descriptions, whose first field is this text."""
    wanted = key.encode()

    def chosen(value: memoryview) -> bool:
        return any(number == 1 and not isinstance(found, int) and bytes(found) == wanted for number, _, found in wire.fields(value))

    return chosen


def _feature(item: spec.Named) -> bytes:
    sizes = _message(1, b"".join(map(_varint, item.type.shape)))
    array = sizes + _varint(2 << 3) + _varint(FEATURES[item.type.dtype])
    return _message(1, item.name.encode()) + _message(3, _message(5, array))


def _message(number: int, data: bytes | memoryview) -> bytes:
    return _varint(number << 3 | wire.BYTES) + _varint(len(data)) + bytes(data)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
