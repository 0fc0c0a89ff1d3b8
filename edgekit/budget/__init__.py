"""Bytes used (model, runtime libraries of the ABI, glue) against limits. The arithmetic is pure; files are measured at the edges.

`installed` bytes are those on the device, uncompressed; `download` bytes are each file deflated by itself, as in an app package.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Literal

import msgspec

from edgekit.budget.binaries import runtime_in
from edgekit.budget.catalogue import runtime_rows
from edgekit.budget.parts import KINDS, Kind, Part
from edgekit.errors import UsageError
from edgekit.target import Target

__all__ = ["Excess", "Kind", "Limits", "Part", "Usage", "check", "format_size", "model_part", "parse_size", "runtime_parts", "usage"]

SizeOf = Literal["installed", "download"]
What = Literal["total", "model", "flash", "sram"]

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
CHUNK_BYTES = 1 << 20
HARDLY_SMALLER = 0.9
"""Reported selective builds take a half to a fifth of the full runtime: one that saves less than a tenth has trimmed nothing."""


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """`max_total_bytes` bounds model, runtime and glue together, in bytes of `size_of`; `max_model_bytes` the artifact's file alone.

    On a microcontroller `max_flash_bytes` bounds the same as `max_total_bytes`, installed, and `max_sram_bytes` all memory at run time.
    """

    max_total_bytes: int | None = None
    max_model_bytes: int | None = None
    max_flash_bytes: int | None = None
    max_sram_bytes: int | None = None
    size_of: SizeOf = "installed"


class Usage(msgspec.Struct, frozen=True):
    """Where the bytes go. A part of category `arena` is memory at run time, and counts in no total."""

    parts: tuple[Part, ...]

    @property
    def model_bytes(self) -> int:
        """Size of the artifact's files."""
        return sum(part.installed_bytes for part in self.parts if part.category == "model")

    def total_bytes(self, size_of: SizeOf = "installed") -> int:
        """Bytes of model, runtime and glue."""
        return sum(part.bytes(size_of) for part in self.parts if part.category != "arena")

    @property
    def sram_bytes(self) -> int:
        """Memory at run time: arena, variables, stack."""
        return sum(part.installed_bytes for part in self.parts if part.category == "arena")

    def kind(self, *, arena: bool = False) -> Kind:
        """How sure the total (or the memory at run time) is: the least sure of its parts."""
        return max((part.kind for part in self.parts if (part.category == "arena") == arena), key=KINDS.index, default="measured")


class Excess(msgspec.Struct, frozen=True):
    """A limit that broke: `what` is `total`, `model`, `flash` or `sram`; `kind` says how sure the used bytes are."""

    what: What
    used_bytes: int
    limit_bytes: int
    size_of: SizeOf
    kind: Kind

    @property
    def over_bytes(self) -> int:
        """How much too large."""
        return self.used_bytes - self.limit_bytes

    @property
    def message(self) -> str:
        """One sentence with both numbers."""
        subject = {
            "model": "the model takes",
            "total": f"model, runtime and glue take ({self.size_of}, {self.kind})",
            "flash": f"model, runtime and glue take of flash ({self.kind})",
            "sram": f"arena, variables and stack take of SRAM ({self.kind})",
        }[self.what]
        return f"{subject} {format_size(self.used_bytes)}, {format_size(self.over_bytes)} more than the limit of {format_size(self.limit_bytes)}"

    @property
    def needed(self) -> str:
        """The option that would let this plan pass."""
        option = {"model": "--max-model-size", "total": "--max-size", "flash": "--max-flash", "sram": "--max-sram"}[self.what]
        if self.what in ("flash", "sram") or self.used_bytes < 10**6:
            return f"{option} {-(-self.used_bytes // 10**3)}KB"
        return f"{option} {-(-self.used_bytes // 10**4) / 100:.2f}MB"


def check(found: Usage, limits: Limits) -> tuple[Excess, ...]:
    """The limits that `found` breaks; empty when it fits."""
    asked: tuple[tuple[What, int, int | None, SizeOf, Kind], ...] = (
        ("total", found.total_bytes(limits.size_of), limits.max_total_bytes, limits.size_of, found.kind()),
        ("model", found.model_bytes, limits.max_model_bytes, "installed", "measured"),
        ("flash", found.total_bytes(), limits.max_flash_bytes, "installed", found.kind()),
        ("sram", found.sram_bytes, limits.max_sram_bytes, "installed", found.kind(arena=True)),
    )
    return tuple(Excess(what, used, most, size_of, kind) for what, used, most, size_of, kind in asked if most is not None and used > most)


def usage(artifact: Path, runtime: tuple[Part, ...] = (), *, name: str = "", parts: tuple[Part, ...] = ()) -> Usage:
    """Usage of an artifact (file or folder) with its runtime's parts; `name` is the artifact's in the breakdown, by default its file's.

    `parts` are the artifact's own, where its files do not say what it takes.
    """
    return Usage((*(parts or (model_part(artifact, name),)), *runtime))


def model_part(artifact: Path, name: str = "") -> Part:
    """The artifact's measured bytes under its file's name, or `name`; every file of a folder is deflated by itself."""
    files = [artifact] if artifact.is_file() else sorted(p for p in artifact.rglob("*") if p.is_file())
    installed, download = (sum(map(size, files)) for size in (lambda f: f.stat().st_size, _deflated_bytes))
    return Part(name or artifact.name, "model", installed, download, "measured", "measured here")


def runtime_parts(target: Target, library: Path | None = None) -> tuple[Part, ...]:
    """Runtime and glue of a target: measured in `library` (an AAR, APK, zip or .so) when given, from the size catalogue otherwise.

    A measured runtime that is hardly smaller than the full one says so in its note: a selective build is known to miss its operator list silently.
    Raises `UsageError` when the catalogue has no row for the platform, or the library none for the ABI.
    """
    rows = runtime_rows(target.runtime.catalogue, target.runtime.platform, target.runtime.accelerator, required=library is None)
    if library is None:
        return rows
    measured = _beside_the_full(runtime_in(library, target.abi), rows)
    return (*measured, *(part for part in rows if part.category == "glue" and library.suffix == ".so"))


def _beside_the_full(measured: tuple[Part, ...], rows: tuple[Part, ...]) -> tuple[Part, ...]:
    taken, full = (sum(part.installed_bytes for part in parts if part.category == "runtime") for parts in (measured, rows))
    if not full or taken <= HARDLY_SMALLER * full:
        return measured
    note = f"{taken:,} bytes of runtime, the full one {full:,}: if this is a selective build, its operator list did not reach it"
    largest = max((part for part in measured if part.category == "runtime"), key=lambda part: part.installed_bytes)
    noted = msgspec.structs.replace(largest, note="; ".join(filter(None, (largest.note, note))))
    return tuple(noted if part is largest else part for part in measured)


def parse_size(text: str) -> int:
    """Bytes of `25MB`, `5.4 MB`, `256KB`, `1MiB` or `4096`: MB is 10^6, MiB is 2^20. Raises `UsageError`."""
    found = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)\s*", text, re.ASCII)
    if found is None or found[2].upper() not in UNITS:
        raise UsageError(f"{text!r} is not a size", "write it as 25MB (10^6 bytes), 256KB, 1MiB (2^20 bytes) or a number of bytes")
    return round(float(found[1]) * UNITS[found[2].upper()])


def format_size(count: int) -> str:
    """Exact bytes and MB: `5,400,000 bytes (5.40 MB)`."""
    return f"{count:,} bytes ({count / 10**6:.2f} MB)"


def _deflated_bytes(path: Path) -> int:
    packer, total = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            total += len(packer.compress(chunk))
    return total + len(packer.flush())
