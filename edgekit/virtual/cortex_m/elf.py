"""What a firmware takes of flash and SRAM, read from its ELF file (32 bit, little-endian: System V ABI, sections)."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

from edgekit.errors import EdgekitError

_STACK = ".stack"
_NOBITS = 8
_WRITE, _ALLOC = 1, 2
_MAX_SECTIONS = 4096


@dataclasses.dataclass(frozen=True)
class Sizes:
    """`flash_bytes`: code, constants and initial values of data. `sram_bytes`: data and zeroed data, the stack apart."""

    flash_bytes: int
    sram_bytes: int
    stack_reserved_bytes: int


def sizes(path: Path) -> Sizes:
    """Add up the sections that take memory. Raises `EdgekitError` for what is no 32-bit little-endian ELF file with sections."""
    flash = sram = stack = 0
    for name, kind, flags, size in _sections(path):
        if not flags & _ALLOC:
            continue
        if name == _STACK:
            stack += size
            continue
        flash += size if kind != _NOBITS else 0
        sram += size if kind == _NOBITS or flags & _WRITE else 0
    return Sizes(flash, sram, stack)


def _sections(path: Path) -> list[tuple[str, int, int, int]]:
    """Name, type, flags and size of every section."""
    data = path.read_bytes()
    try:
        if data[:6] != b"\x7fELF\x01\x01":
            raise EdgekitError(f"{path.name} is not a 32-bit little-endian ELF file")
        (offset,) = struct.unpack_from("<I", data, 32)
        entry, count, names_at = struct.unpack_from("<3H", data, 46)
        if entry != 40 or count > _MAX_SECTIONS or names_at >= count:
            raise EdgekitError(f"{path.name}: the table of sections is malformed ({count} of {entry} bytes)")
        heads = [struct.unpack_from("<6I", data, offset + i * entry) for i in range(count)]
        names = data[heads[names_at][4] : heads[names_at][4] + heads[names_at][5]]
        return [(names[head[0] :].split(b"\0")[0].decode("ascii", "replace"), head[1], head[2], head[5]) for head in heads]
    except struct.error as error:
        raise EdgekitError(f"{path.name} is truncated: {error}") from error
