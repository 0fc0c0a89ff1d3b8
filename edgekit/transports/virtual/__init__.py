"""Devices that need no hardware: `virtual:NAME`. Each is started for the link, used as a real one would be, and stopped with it.

`DEVICES` is the one place that says which exist. The module behind a device has `connect(name, options) -> Link`, which starts it, and
`missing()`, what this machine lacks for it: lines of `WHAT: COMMAND THAT INSTALLS IT`. It is imported when the device is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import msgspec

from edgekit.errors import UsageError, close_match
from edgekit.transports import Link
from edgekit.virtual.cortex_m.boards import BOARDS, Board


class VirtualDevice(msgspec.Struct, frozen=True):
    """One virtual device: what follows `virtual:`, what it is for people, and the module of this package that starts it."""

    name: str
    summary: str
    module: str

    @property
    def address(self) -> str:
        """What to type after `--device`."""
        return f"virtual:{self.name}"


def _described(board: Board) -> str:
    flash, sram = (f"{count / 2**20:g} MiB" for count in (board.flash_bytes, board.ram.size_bytes))
    return f"Arm {board.core.title()} in QEMU ({board.machine}): {flash} flash, {sram} SRAM"


_HEXAGONS = ("68", "69", "73", "75", "79", "81")

DEVICES = {
    device.name: device
    for device in (
        VirtualDevice("android-arm64", "Android over the ADB protocol, on an emulated 64-bit Arm userland", "android"),
        *(VirtualDevice(f"hexagon-v{arch}", f"Hexagon v{arch}: Qualcomm's HTP simulator", "hexagon") for arch in _HEXAGONS),
        VirtualDevice("dpu", "AMD DPU: integer reference of its arithmetic", "dpu"),
        VirtualDevice("coreml", "Core ML: interpreter of ML Programs, as its CPU unit computes", "coreml"),
        *(VirtualDevice(core, _described(board), "cortex_m") for core, board in BOARDS.items()),
    )
}
"""Name -> virtual device."""


FORM = "virtual:NAME"


def check(place: str) -> None:
    """Refuse what is no virtual device. Raises `UsageError`."""
    if place not in DEVICES:
        raise UsageError(f"there is no virtual device {place!r}", close_match(place, DEVICES))


def connect(address: str, options: Mapping[str, Any]) -> Link:
    """Start the virtual device `address`; `options` are those of the device (`cores`, `model`, ...).

    Raises `UsageError` for an unknown device or option, `MissingPackageError` for what it needs, `DeviceError` when it would not start.
    """
    link: Link = _module(address).connect(address, options)
    return link


def missing(name: str) -> tuple[str, ...]:
    """What this machine lacks for a virtual device, one line each, with the command that installs it. Raises `UsageError` for an unknown one."""
    return tuple(_module(name).missing())


def _module(name: str) -> Any:
    check(name)
    return importlib.import_module(f"edgekit.transports.virtual.{DEVICES[name].module}")
