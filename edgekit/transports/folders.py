"""The local side of a transfer: what a job folder holds, and a result folder that is complete or not there."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import msgspec

from edgekit.errors import RunnerError
from edgekit.job import inside

RUNNER = "runner"
MAX_FILES = 4096
_SAFE = re.compile(r"[^\x00-\x1f\x7f\\]+")


class Entry(msgspec.Struct, frozen=True):
    """One file to carry: its name in the folder (`/` between parts), where it lies here, and its content by hash."""

    name: str
    path: Path
    size_bytes: int
    sha256: str
    executable: bool


class Remote(msgspec.Struct, frozen=True):
    """One file to bring back: its name in the result folder, and the hash the device gives for it."""

    name: str
    sha256: str


def manifest(folder: Path) -> tuple[Entry, ...]:
    """Every file of a job folder, sorted by name. Raises `RunnerError` (stage `job`) for a name that cannot travel."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple(_entry(folder, path) for path in files)


def listing(text: str) -> tuple[Remote, ...]:
    """Read what `sha256sum` printed for a result folder.

    Raises `RunnerError` (stage `output`) for a name that leaves it, and for names that no one folder can hold.
    """
    files = []
    for line in text.splitlines():
        sha256, _, name = line.partition(" ")
        name = name.lstrip(" *").removeprefix("./")
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise RunnerError(f"the device's list of result files is malformed: {line[:120]!r}", stage="output")
        inside(Path("result"), name)
        files.append(Remote(str(PurePosixPath(name)), sha256))
    names = {file.name for file in files}
    if len(names) < len(files) or names & {".", *(str(parent) for name in names for parent in PurePosixPath(name).parents)}:
        raise RunnerError("the device's list of result files names one twice, or one as the folder of another", stage="output")
    check_count(len(files))
    return tuple(files)


def check_count(files: int) -> None:
    """Refuse more files than a run can need. Raises `RunnerError` (stage `output`)."""
    if files > MAX_FILES:
        raise RunnerError(f"the run left more than {MAX_FILES} files", stage="output")


@contextmanager
def received(result: Path) -> Iterator[Path]:
    """A folder to receive into, which takes the place of the empty folder `result` when the block ends well, and vanishes when it does not."""
    part = result.with_name(f".{result.name}.{uuid.uuid4().hex}.part")
    part.mkdir(parents=True)
    try:
        yield part
        if result.exists():
            result.rmdir()
        part.rename(result)
    except BaseException:
        result.mkdir(exist_ok=True)
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _entry(folder: Path, path: Path) -> Entry:
    name = path.relative_to(folder).as_posix()
    if not _SAFE.fullmatch(name) or any(part != part.strip() for part in name.split("/")):
        raise RunnerError(f"the job file {name!r} has a name that not every device can hold", stage="job")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    executable = name == RUNNER or path.suffix == ".so" or os.access(path, os.X_OK)
    return Entry(name, path, path.stat().st_size, digest, executable)
