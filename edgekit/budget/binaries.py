"""Measure runtime libraries in an AAR, APK, zip or .so that the user gives. The file is treated as hostile: reads are bounded."""

from __future__ import annotations

import contextlib
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

from edgekit.budget.parts import Part
from edgekit.errors import UsageError

MAX_ENTRIES = 20_000
MAX_LIBRARY_BYTES = 1 << 30
MAX_RATIO = 200
"""Native code deflates to a third or so; a higher ratio than this is a bomb."""

MACHINES = {"arm64-v8a": 183, "aarch64": 183, "armeabi-v7a": 40, "armv7l": 40, "x86": 3, "x86_64": 62}
"""ELF `e_machine` by ABI (System V ABI, ELF header)."""

_GIVE = "give the runtime's shared library, or the AAR, APK or wheel that holds it"


class Elf(msgspec.Struct, frozen=True):
    """What the section table says: bytes of debug information and of the symbol tables that stripping removes."""

    machine: int
    debug_bytes: int
    symbol_bytes: int

    @property
    def removable_bytes(self) -> int:
        """What `strip` would take away."""
        return self.debug_bytes + self.symbol_bytes


def runtime_in(path: Path, abi: str) -> tuple[Part, ...]:
    """The native libraries of `abi` in `path`, and the classes of an AAR as glue, measured.

    A library that is not stripped says so in its note. Raises `UsageError` for a file without a library for the ABI, for a static archive,
    and for one that is damaged or does not look like what it is.
    """
    try:
        head = _head(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})", _GIVE) from error
    if head.startswith(b"\x7fELF"):
        if path.stat().st_size > MAX_LIBRARY_BYTES:
            raise UsageError(f"{path.name}: larger than {MAX_LIBRARY_BYTES} bytes", _GIVE)
        return (_library(path.name, path.read_bytes(), abi, path.name),)
    if head.startswith(b"!<arch>"):
        raise UsageError(f"{path.name}: a static archive is not what ships", "measure the shared library or the AAR that is linked from it")
    if not zipfile.is_zipfile(path):
        raise UsageError(f"{path.name}: neither a shared library nor an AAR, APK or zip", _GIVE)
    with archive_of(path) as archive:
        return _in_archive(archive, path, abi)


@contextlib.contextmanager
def archive_of(path: Path) -> Iterator[zipfile.ZipFile]:
    """An AAR, APK, wheel or zip to read from. Raises `UsageError` where it turns out to be damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, OSError) as error:
        raise UsageError(f"{path.name}: the archive is damaged or not readable ({error})", "download it again") from error


def read_elf(data: bytes) -> Elf:
    """The ELF facts of a shared library. Raises `ValueError` when its tables are cut off."""
    try:
        wide, order = data[4] == 2, "<" if data[5] == 1 else ">"
        machine = struct.unpack_from(f"{order}H", data, 18)[0]
        table = struct.unpack_from(f"{order}{'Q' if wide else 'I'}", data, 40 if wide else 32)[0]
        size, count, names_at = struct.unpack_from(f"{order}3H", data, 58 if wide else 46)
        sections = [_section(data, table + i * size, wide, order) for i in range(count)]
        names = data[sections[names_at][1] : sections[names_at][1] + sections[names_at][2]] if sections else b""
    except (struct.error, IndexError) as error:
        raise ValueError(f"its section table is cut off ({error})") from error
    debug = symbols = 0
    for name_at, _, length in sections:
        name = names[name_at : names.find(b"\0", name_at)]
        debug += length if name.startswith((b".debug", b".zdebug")) else 0
        symbols += length if name in (b".symtab", b".strtab") else 0
    return Elf(machine, debug, symbols)


def _section(data: bytes, at: int, wide: bool, order: str) -> tuple[int, int, int]:
    """Name offset, file offset and size of a section header."""
    if wide:
        name, _, _, _, offset, size = struct.unpack_from(f"{order}IIQQQQ", data, at)
    else:
        name, _, _, _, offset, size = struct.unpack_from(f"{order}6I", data, at)
    return name, offset, size


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(8)


def _in_archive(archive: zipfile.ZipFile, path: Path, abi: str) -> tuple[Part, ...]:
    entries = archive.infolist()
    if len(entries) > MAX_ENTRIES:
        raise UsageError(f"{path.name}: {len(entries)} entries, more than {MAX_ENTRIES}", _GIVE)
    libraries = [e for e in entries if e.filename.endswith(".so") and abi in PurePosixPath(e.filename).parts]
    if not libraries:
        abis = sorted({PurePosixPath(e.filename).parent.name for e in entries if e.filename.endswith(".so")})
        raise UsageError(f"{path.name}: no library for {abi}", f"it holds {', '.join(abis) or 'no native libraries'}")
    libraries.sort(key=lambda e: e.filename)
    found = [_library(PurePosixPath(e.filename).name, read_entry(archive, e, path), abi, path.name) for e in libraries]
    for entry in entries:
        if entry.filename == "classes.jar":
            data = read_entry(archive, entry, path)
            found.append(Part("classes.jar", "glue", len(data), _deflated(data), "measured", path.name, "before the app's own shrinking"))
    return tuple(found)


def read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> bytes:
    """The bytes of one file of an archive. Raises `UsageError` for one that would unpack to more than a library can be."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UsageError(f"{path.name}: {entry.filename} is compressed otherwise than by deflate", _GIVE)
    if entry.file_size > MAX_LIBRARY_BYTES or entry.file_size > MAX_RATIO * max(entry.compress_size, 1 << 10):
        raise UsageError(f"{path.name}: {entry.filename} claims {entry.file_size} bytes from {entry.compress_size}: refused as a zip bomb", _GIVE)
    with archive.open(entry) as file:
        data = file.read(entry.file_size + 1)
    if len(data) != entry.file_size:
        raise zipfile.BadZipFile(f"{entry.filename} is not of the size it claims")
    return data


def _library(name: str, data: bytes, abi: str, source: str) -> Part:
    place = name if name == source else f"{source}: {name}"
    if not data.startswith(b"\x7fELF"):
        raise UsageError(f"{place} is not an ELF library", _GIVE)
    try:
        elf = read_elf(data)
    except ValueError as error:
        raise UsageError(f"{place}: {error}", "download it again") from error
    if elf.machine != MACHINES.get(abi, elf.machine):
        raise UsageError(f"{place} is built for another processor than {abi} (ELF machine {elf.machine})", f"give the library for {abi}")
    note = ""
    if elf.removable_bytes > len(data) // 10:
        note = f"not stripped: {elf.debug_bytes:,} of {len(data):,} bytes are debug information, {elf.symbol_bytes:,} symbol tables"
    return Part(name, "runtime", len(data), _deflated(data), "measured", source, note)


def _deflated(data: bytes) -> int:
    return len(zlib.compress(data, 6))
