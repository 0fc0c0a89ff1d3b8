"""Tell whether anything a build depends on has changed, without running the model or importing its framework."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from edgekit import places
from edgekit.bundle import hash_file, replacing
from edgekit.errors import UsageError

FileStamp = tuple[str, int, int]
"""Path, size in bytes, modification time in ns."""

_LOCATION = re.compile(rb"\n\x08location\x12([\x01-\x7f])", re.DOTALL)
"""A `StringStringEntryProto` with the key `location`, up to the length of its value: enough to find it without the onnx package."""

_UNSTABLE = ("/proc/", "/sys/", "/dev/")
_listeners: list[set[str]] = []
_hooked = False


def key(*parts: Any) -> str:
    """SHA-256 (hex) of plain values and structs."""
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def of_path(path: Path) -> str:
    """SHA-256 (hex) of a file, or of a folder's files by sorted relative name."""
    if path.is_file():
        return hash_file(path)
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(f"{file.relative_to(path).as_posix()}\0{hash_file(file)}\n".encode())
    return digest.hexdigest()


def of_reference(reference: str) -> str | None:
    """The state of what a reference names: a file or folder by content, `package.module:function` by the files that its last run opened.

    None when that cannot be told: the function has not run before, or one of those files has changed.
    """
    path, named = split(reference)
    if exists(path):
        return key(of_path(path), named, _external(path))
    stamps: list[FileStamp] | None = recall(_record_path(reference), list[FileStamp])
    return key(stamps) if stamps is not None and all(_stamp(name) == (name, size, time) for name, size, time in stamps) else None


def split(reference: str) -> tuple[Path, str]:
    """The file or folder of `PATH#NAME`, and the name of a part of it; a path that holds a `#` itself is one."""
    if exists(Path(reference)):
        return Path(reference), ""
    path, _, name = reference.partition("#")
    return Path(path), name


def exists(path: Path) -> bool:
    """Whether there is such a file or folder; a name that no file can have is none."""
    try:
        return path.exists()
    except OSError:
        return False


@contextlib.contextmanager
def recording(*references: str) -> Iterator[None]:
    """Note every file opened while the functions that `references` name run; later `of_reference` tells whether one has changed."""
    _install_hook()
    opened: set[str] = set()
    _listeners.append(opened)
    try:
        yield
    finally:
        _listeners.remove(opened)
    opened |= _sources(opened)
    stamps = sorted(stamp for name in opened if not name.startswith(_UNSTABLE) and (stamp := _stamp(name)))
    for reference in references:
        keep(_record_path(reference), stamps)


def keep(record: Path, content: Any) -> None:
    """Write a record of the cache, complete or not at all. Where the cache cannot be written the next build starts from nothing, no more."""
    with contextlib.suppress(UsageError), replacing(record) as part:
        part.write_bytes(msgspec.json.encode(content))


def recall(record: Path, kind: Any) -> Any:
    """What `keep` wrote, as a `kind`; None where there is no record, or one that cannot be read."""
    try:
        return msgspec.json.decode(record.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def _sources(opened: Iterable[str]) -> set[str]:
    """Source files of what was imported: from a cached `.pyc` without opening the source, or before the function ran."""
    files = {*opened} | {file for module in list(sys.modules.values()) if isinstance(file := getattr(module, "__file__", None), str)}
    found = {name for name in files if not name.endswith(".pyc")}
    for name in files - found:
        with contextlib.suppress(ValueError):  # a .pyc elsewhere has no source that can be told
            found.add(importlib.util.source_from_cache(name))
    return found


def _external(path: Path) -> list[str]:
    """An ONNX file may keep its weights in files beside it, which it names in `external_data` entries (onnx.proto, `location`)."""
    if path.suffix.lower() != ".onnx" or not path.is_file():
        return []
    data = path.read_bytes()
    names = {data[found.end() : found.end() + found[1][0]] for found in _LOCATION.finditer(data)}
    beside = [path.parent / name.decode("utf-8", "replace") for name in sorted(names) if b"\0" not in name]
    return [key(file.name, hash_file(file)) for file in beside if exists(file) and file.is_file()]


def _record_path(reference: str) -> Path:
    return places.cache() / "functions" / f"{key(str(Path.cwd()), reference)}.json"


def _stamp(name: str) -> FileStamp | None:
    try:
        info = os.stat(name)  # noqa: PTH116  # thousands of files: a Path each would take longer than the look
    except OSError:
        return None
    return (name, info.st_size, info.st_mtime_ns) if not stat.S_ISDIR(info.st_mode) else None


def _install_hook() -> None:
    global _hooked
    if not _hooked:
        sys.addaudithook(_on_event)
        _hooked = True


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _listeners:
        return
    name, _, flags = arguments
    if isinstance(name, (str, bytes)) and not (flags or 0) & (os.O_WRONLY | os.O_RDWR):
        path = os.path.abspath(os.fsdecode(name))  # noqa: PTH100  # called for every file that is opened
        for opened in _listeners:
            opened.add(path)
