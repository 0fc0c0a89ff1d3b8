"""Target profiles: what we build for. One TOML file each, no inheritance; an unknown key is refused with the close match."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from edgekit import plugins, resources
from edgekit.errors import UsageError, close_match

T = TypeVar("T")


class Tolerance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bounds of a comparison; an absent bound is not judged. `max_abs` is relative to the reference's largest magnitude when `relative`."""

    min_sqnr_db: float | None = None
    min_cosine: float | None = None
    min_top1: float | None = None
    max_abs: float | None = None
    relative: bool = True


class Runtime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The runtime on the device: `name` as in a job, `catalogue` the key of its size catalogue, `platform` the row of its library.

    `packages` are the Python packages that stand for it here: their versions and licenses go into the manifest.
    """

    name: str
    catalogue: str
    platform: str
    accelerator: str = "cpu"
    packages: tuple[str, ...] = ()


class Tolerances(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`conversion`: a float hop against the source. `quantization`: host artifact against the source, by precision. `device`: device against host."""

    conversion: Tolerance
    device: Tolerance
    quantization: dict[str, Tolerance] = {}


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A target profile. `delegates` are the accelerators judged operator by operator, the planned one first. `options` belong to the backend."""

    name: str
    summary: str
    os: str
    abi: str
    backend: str
    precisions: tuple[str, ...]
    runtime: Runtime
    tolerance: Tolerances
    delegates: tuple[str, ...] = ()
    layout: str = ""
    notes: tuple[str, ...] = ()
    options: dict[str, Any] = {}


def load(name: str) -> Target:
    """The profile `name`, or the one in the file `name` (`./my-board.toml`). Raises `UsageError`."""
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise UsageError(f"{name}: no such target profile", "'edgekit targets' lists those that ship with edgekit")
        return read(path)
    found = paths()
    if name not in found:
        raise UsageError(f"unknown target {name!r}", close_match(name, found) + "; 'edgekit targets' lists them")
    return read(found[name])


def paths() -> dict[str, Path]:
    """Built-in and plugged-in profiles by name."""
    return {path.stem: path for folder in _folders() for path in sorted(folder.glob("*.toml"))}


def table(folder: Literal["ops", "runtimes"], name: str, kind: type[T], what: str) -> T:
    """The JSON file `name` of a folder beside the profiles, built-in or plugged-in: operator tables, size catalogues.

    Raises `UsageError` with the close match for an unknown one (`what` says what is missing), and for a malformed one.
    """
    known = {path.stem: path for beside in _folders() for path in sorted((beside / folder).glob("*.json"))}
    if name not in known:
        raise UsageError(f"there is no {what} {name!r}", close_match(name, known))
    try:
        return msgspec.json.decode(known[name].read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise UsageError(f"{folder}/{name}.json: {error}", "correct the file there, or install its package again") from error


def _folders() -> list[Path]:
    return [resources.directory("targets"), *plugins.folders("edgekit.targets")]


def read(path: Path) -> Target:
    """Read one profile. Raises `UsageError` naming file and key."""
    return decode_toml(path, Target)


def decode_toml(path: Path, kind: type[T]) -> T:
    """Decode a TOML file into a struct type. Raises `UsageError` with the file, the key and the close match of an unknown key."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
        if key := _not_finite(document):
            raise UsageError(f"{path.name}: {key} is no finite number", "nothing is out of a bound that is none: leave it out")
        return msgspec.convert(document, kind)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name}: not valid TOML: {error}", "correct the file there") from error
    except msgspec.ValidationError as error:
        raise UsageError(f"{path.name}: {error}", _unknown_key_hint(str(error), kind)) from error


def _not_finite(value: Any, key: str = "") -> str:
    """The key of a number that TOML calls `nan` or `inf`, with it; empty where there is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{key} = {value}"
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next(filter(None, (_not_finite(part, f"{key}.{name}".lstrip(".")) for name, part in inner)), "")


def _unknown_key_hint(message: str, kind: type[Any]) -> str:
    found = re.search(r"unknown field `([^`]+)`", message)
    return close_match(found[1], _fields(kind)) if found else f"its keys are {', '.join(sorted(_fields(kind)))}"


def _fields(kind: Any) -> set[str]:
    names: set[str] = set()
    for field in msgspec.structs.fields(kind):
        names.add(field.encode_name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            names |= _fields(field.type)
    return names
