"""What edgekit reads of a firmware's ELF file: sizes, loaded segments, symbols (32 bit, little-endian: System V ABI)."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from edgekit.errors import EdgekitError

_STACK = ".stack"
_LOAD = 1
_SYMBOLS, _NOBITS = 2, 8
_WRITE, _ALLOC = 1, 2
_MAX_SECTIONS = 4096
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """`flash_bytes`: code, constants and initial values of data. `sram_bytes`: data and zeroed data, the stack apart."""

    flash_bytes: int
    sram_bytes: int
    stack_reserved_bytes: int


@dataclasses.dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int


def sizes(path: Path) -> Sizes:
    """Add up the sections that take memory. Raises `EdgekitError` for what is no 32-bit little-endian ELF file with sections."""
    flash = sram = stack = 0
    for section in _read(path, _sections):
        if not section.flags & _ALLOC:
            continue
        if section.name == _STACK:
            stack += section.size
            continue
        flash += section.size if section.kind != _NOBITS else 0
        sram += section.size if section.kind == _NOBITS or section.flags & _WRITE else 0
    return Sizes(flash, sram, stack)


def segments(path: Path) -> dict[int, bytes]:
    """Address in memory -> the bytes that are there when the program starts. Raises what `sizes` raises."""
    return _read(path, _segments)


def symbols(path: Path) -> list[tuple[str, int]]:
    """Symbols and their values, in the file's order. Raises what `sizes` raises."""
    return _read(path, _symbols)


def _read(path: Path, parse: Callable[[str, bytes], _T]) -> _T:
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x01\x01":
        raise EdgekitError(f"{path.name} is not a 32-bit little-endian ELF file")
    try:
        return parse(path.name, data)
    except (struct.error, IndexError) as error:
        raise EdgekitError(f"{path.name} is truncated: {error}") from error


def _sections(file: str, data: bytes) -> list[_Section]:
    (offset,) = struct.unpack_from("<I", data, 32)
    entry, count, names_at = struct.unpack_from("<3H", data, 46)
    if entry != 40 or count > _MAX_SECTIONS or names_at >= count:
        raise EdgekitError(f"{file}: the table of sections is malformed ({count} of {entry} bytes)")
    heads = [struct.unpack_from("<7I", data, offset + i * entry) for i in range(count)]
    names = data[heads[names_at][4] : heads[names_at][4] + heads[names_at][5]]
    return [_Section(_text(names, head[0]), head[1], head[2], head[4], head[5], head[6]) for head in heads]


def _segments(_: str, data: bytes) -> dict[int, bytes]:
    (offset,) = struct.unpack_from("<I", data, 28)
    entry, count = struct.unpack_from("<2H", data, 42)
    heads = [struct.unpack_from("<5I", data, offset + i * entry) for i in range(count)]
    return {address: data[start : start + size] for kind, start, address, _, size in heads if kind == _LOAD and size}


def _symbols(file: str, data: bytes) -> list[tuple[str, int]]:
    found, sections = [], _sections(file, data)
    for table in (section for section in sections if section.kind == _SYMBOLS):
        names = data[sections[table.link].offset :][: sections[table.link].size]
        for at in range(table.offset, table.offset + table.size, 16):
            name, value = struct.unpack_from("<2I", data, at)
            found.append((_text(names, name), value))
    return found


def _text(names: bytes, at: int) -> str:
    end = names.find(b"\0", at)
    return names[at : end if end >= 0 else len(names)].decode("ascii", "replace")
