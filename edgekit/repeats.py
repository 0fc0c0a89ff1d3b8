"""Remember what was built from what, so that a repeat with nothing changed takes no time."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edgekit import __version__, fingerprint, places
from edgekit.bundle import hash_file
from edgekit.versions import tool_versions


class _Record(msgspec.Struct, frozen=True):
    path: str
    sha256: str


def key(reference: str, calibration: str | None, *settings: object) -> str | None:
    """What a build depends on, or None when that cannot be told without running the model."""
    source = fingerprint.of_reference(reference)
    data = fingerprint.of_reference(calibration) if calibration else ""
    if source is None or data is None:
        return None
    return fingerprint.key(__version__, source, data, tool_versions(), *settings)


def find(build: str | None) -> Path | None:
    """The bundle that this build wrote, if it is still there, unchanged."""
    found: _Record | None = fingerprint.recall(_path(build), _Record) if build else None
    if found is None:
        return None
    path = Path(found.path)
    return path if path.is_file() and hash_file(path) == found.sha256 else None


def remember(build: str | None, bundle: Path) -> None:
    """Note that this build wrote `bundle`."""
    if build is not None:
        fingerprint.keep(_path(build), _Record(str(bundle.resolve()), hash_file(bundle)))


def _path(build: str) -> Path:
    return places.cache() / "builds" / f"{build}.json"
