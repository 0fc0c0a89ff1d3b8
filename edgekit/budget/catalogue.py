"""The size catalogue of runtimes: `targets/runtimes/*.json`, with the source and kind of every number."""

from __future__ import annotations

from functools import cache

import msgspec

from edgekit import target
from edgekit.budget.parts import Category, Kind, Part
from edgekit.errors import UsageError


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One library on one platform. `ships`: part of an app by default. `accelerators`: only with these. `variant`: `full` or `trimmed`.

    Where one of the two sizes is not known it is derived from the other by the catalogue's ratio, and the row counts as estimated.
    """

    library: str
    platform: str
    kind: Kind
    source: str
    version: str
    installed_bytes: int | None = None
    download_bytes: int | None = None
    ships: bool = False
    category: Category = "runtime"
    accelerators: tuple[str, ...] = ()
    variant: str = "full"
    note: str = ""


class Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows of one runtime. `download_over_installed` is the ratio of deflated to raw bytes that was measured on its library."""

    runtime: str
    sources: dict[str, dict[str, str]]
    rows: tuple[Row, ...]
    download_over_installed: float = 1.0
    notes: tuple[str, ...] = ()


@cache
def load(runtime: str) -> Catalogue:
    """The catalogue of a runtime. Raises `UsageError` with the close match for an unknown one."""
    return target.table("runtimes", runtime, Catalogue, "size catalogue for the runtime")


def runtime_rows(runtime: str, platform: str, accelerator: str, *, required: bool = True) -> tuple[Part, ...]:
    """What ships of a runtime on a platform. Raises `UsageError` when that is not known and `required`."""
    found = load(runtime)
    rows = [r for r in found.rows if r.platform == platform and r.ships and (not r.accelerators or accelerator in r.accelerators)]
    if not rows and required:
        known = sorted({r.platform for r in found.rows if r.ships})
        raise UsageError(f"the size of {runtime} on {platform} is not known", f"measure it with --runtime-aar FILE; known: {', '.join(known)}")
    return tuple(part(found, row) for row in rows)


def part(found: Catalogue, row: Row) -> Part:
    """A row with both sizes."""
    ratio = found.download_over_installed
    installed = row.installed_bytes if row.installed_bytes is not None else round((row.download_bytes or 0) / ratio)
    download = row.download_bytes if row.download_bytes is not None else round(installed * ratio)
    derived = row.installed_bytes is None or row.download_bytes is None
    source = found.sources.get(row.source, {})
    origin = " ".join(x for x in (source.get("package") or source.get("repo") or "", source.get("version", "")) if x)
    return Part(row.library, row.category, installed, download, "estimated" if derived else row.kind, origin, row.note)
