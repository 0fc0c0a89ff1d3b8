"""Code around an artifact, for the app or firmware that it becomes a part of.

A writer is a module of this package, found by the operating system of the bundle's target. It has `KIND`, what it writes in words, and
`write(opened, name, folder) -> notes`: fill an empty folder from an open bundle; `name` is what the user calls it (empty: the writer's choice),
notes are for the user.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
from pathlib import Path

import msgspec

from edgekit import bundle
from edgekit.errors import UsageError

WRITERS = {"none": "c_library", "android": "android", "ios": "swift", "macos": "swift"}
"""Operating system of the target -> module that writes for it."""
STAMP = "edgekit.json"
"""Marks a folder as written here: such a one is replaced, another is not."""


class Library(msgspec.Struct, frozen=True):
    """What was written: `kind` in words, the folder, its files (sorted, relative), notes for the user."""

    kind: str
    folder: str
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


def write(path: Path, out: Path, name: str = "") -> Library:
    """Write the library of a bundle into the folder `out`, complete or not at all.

    Raises `UsageError` for a bundle that nothing is written for, a bad name, or a folder that holds something else; `BundleError` for a corrupt
    bundle.
    """
    with bundle.open(path) as opened:
        target = opened.manifest.target
        if target.os not in WRITERS:
            raise UsageError(f"{path.name} is for {target.name}: no library is written for {target.os}", f"it is for {', '.join(WRITERS)}")
        writer = importlib.import_module(f"edgekit.embed.{WRITERS[target.os]}")
        _check(out)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
            folder = Path(scratch, "new")
            folder.mkdir()
            notes = writer.write(opened, name, folder)
            stamp = {"bundle": path.name, "sha256": opened.sha256, "target": target.name, "kind": writer.KIND}
            (folder / STAMP).write_bytes(msgspec.json.format(msgspec.json.encode(stamp), indent=1) + b"\n")
            files = tuple(sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()))
            _replace(folder, out, Path(scratch, "old"))
    return Library(writer.KIND, str(out), files, tuple(notes))


def _check(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file", "--out is a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / STAMP).is_file():
        raise UsageError(f"{out} holds files that edgekit did not write", "choose a new folder, or an empty one")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}", "choose a writable place") from error


def _replace(new: Path, out: Path, old: Path) -> None:
    try:
        if out.exists():
            out.rename(old)
        shutil.move(new, out)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}", "choose a writable place") from error
