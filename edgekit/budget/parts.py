"""One row of a size breakdown, and what a smaller runtime may save."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["measured", "documented", "reported", "estimated"]
Category = Literal["model", "runtime", "glue", "arena"]

KINDS: tuple[Kind, ...] = ("measured", "documented", "reported", "estimated")
"""From sure to unsure. Measured: weighed here or for the catalogue. Documented: the vendor's word. Reported: someone's. Estimated: derived."""


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes of one thing that ships (or, for an arena, is taken at run time), how they are known, and from where."""

    name: str
    category: Category
    installed_bytes: int
    download_bytes: int
    kind: Kind
    source: str = ""
    note: str = ""

    def bytes(self, size_of: Literal["installed", "download"]) -> int:
        """The bytes that `size_of` asks for."""
        return self.installed_bytes if size_of == "installed" else self.download_bytes


class Saving(msgspec.Struct, frozen=True):
    """What a build of a runtime with fewer operators may save, from builds of other models that were reported: an estimate, never a measurement."""

    platform: str
    full_bytes: int
    trimmed_bytes: int
    saved_bytes: int
    kind: Kind
    sources: tuple[str, ...]
    note: str
