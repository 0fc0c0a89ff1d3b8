"""What edgekit runs on: units (one device each), the addresses users type, and device models (`devices/*.toml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from edgekit import plugins, resources, target
from edgekit.errors import UsageError, close_match

_TRANSPORTS = "edgekit.transports"
_ADDRESS = re.compile(r"([a-z][a-z0-9_-]*):(.*)", re.DOTALL)


class Unit(msgspec.Struct, frozen=True):
    """One device that can be used. `place` is the part of its address after the transport: a serial, USER@HOST, the name of a virtual device.

    `concurrency` is how many tests it may run at once. `device` names its device model, when it is known. `options` go to the transport.
    """

    name: str
    transport: str
    place: str
    labels: tuple[str, ...] = ()
    device: str = ""
    concurrency: int = 1
    options: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """`transport:place`, which is one device for all who write it so."""
        return f"{self.transport}:{self.place}"


class DeviceModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a kind of device before one is asked. `models` are patterns (`*` is any text) of the name such a device reports.

    `memory_bytes` is the smallest variant sold. `address` is what to type for a virtual one. A microcontroller has `flash_bytes` and
    `sram_bytes`, the largest piece of SRAM that an arena can take as one.
    """

    name: str
    summary: str
    os: str
    abi: str
    targets: tuple[str, ...]
    models: tuple[str, ...] = ()
    soc: str = ""
    cores: int | None = None
    memory_bytes: int | None = None
    flash_bytes: int | None = None
    sram_bytes: int | None = None
    first_api_level: int | None = None
    accelerators: tuple[str, ...] = ()
    virtual: bool = False
    address: str = ""
    notes: tuple[str, ...] = ()


def parse(text: str, name: str = "") -> Unit:
    """The unit at an address such as `adb:HOST:PORT?server_port=5038`. Raises `UsageError` for an address that cannot be one."""
    found = _ADDRESS.fullmatch(text.strip())
    if not found:
        raise UsageError(f"{text!r} is neither a unit of the farm file nor an address", f"addresses are {forms()}")
    transport, rest = found[1], found[2]
    place, question, query = rest.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if question else []
    except ValueError as error:
        raise UsageError(f"{text}: {query!r} are not options", "options are written ?name=value&name=value") from error
    _check_place(text, transport, place)
    return Unit(name or text, transport, place, options=dict(pairs))


def resolve(text: str, units: Mapping[str, Unit] | None = None) -> Unit:
    """The unit that `--device TEXT` means: one of the farm's by name, or an address. Raises `UsageError`."""
    known = units or {}
    if text in known:
        return known[text]
    if not _ADDRESS.fullmatch(text):
        hint = close_match(text, known) if known else "no farm file is in use"
        raise UsageError(f"there is no unit {text!r}", f"{hint}; addresses are {forms()}")
    return parse(text)


def select(text: str, units: Mapping[str, Unit]) -> tuple[Unit, ...]:
    """The units that `--device TEXT` means: `label:LABEL` is every unit of the farm with that label. Raises `UsageError` when there is none."""
    if not text.startswith("label:"):
        return (resolve(text, units),)
    label = text.removeprefix("label:")
    chosen = tuple(unit for unit in units.values() if label in unit.labels)
    if not chosen:
        labels = {label for unit in units.values() for label in unit.labels}
        raise UsageError(f"no unit of the farm has the label {label!r}", close_match(label, labels) if labels else "the farm file gives no labels")
    return chosen


def models() -> dict[str, DeviceModel]:
    """Built-in and plugged-in device models by name. Raises `UsageError` for a malformed file."""
    folders = [resources.directory("devices"), *plugins.folders("edgekit.devices")]
    paths = (path for folder in folders for path in sorted(folder.glob("*.toml")) if not path.name.endswith(".example.toml"))
    return {model.name: model for model in map(read, paths)}


def read(path: Path) -> DeviceModel:
    """One device model. Raises `UsageError` with file, key and close match."""
    return target.decode_toml(path, DeviceModel)


def identify(reported: str, known: Mapping[str, DeviceModel] | None = None) -> DeviceModel | None:
    """The device model that a device means by the model name it reports, or None."""
    found = known if known is not None else models()
    return next((model for model in found.values() if any(fnmatchcase(reported, name) for name in model.models)), None)


def forms() -> str:
    """The addresses of edgekit's own transports, for people, as each writes them."""
    return ", ".join(plugins.load(_TRANSPORTS, name).FORM for name in plugins.BUILT_IN[_TRANSPORTS])


def _check_place(text: str, transport: str, place: str) -> None:
    """What holds of every place, and what the transport itself says; a third party's code is not run before it is used."""
    if any(ord(character) < 32 for character in place) or place.startswith("-"):
        raise UsageError(f"{text!r} is not an address", f"addresses are {forms()}")
    if plugins.is_built_in(_TRANSPORTS, transport):
        plugins.load(_TRANSPORTS, transport).check(place)
