"""Devices that need no hardware: `virtual:NAME`. Each is started for the link, used as a real one would be, and stopped with it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from edgekit.errors import UsageError, close_match
from edgekit.job import inside, read_job
from edgekit.transports import Facts, Link, adb, adb_server, local, virtual_mcu
from edgekit.virtual import android

NAMES = ("android-arm64", "dpu", *virtual_mcu.NAMES)
HEXAGON = "hexagon-v"
ARCHS = ("68", "69", "73", "75", "79", "81")


def connect(address: str, options: Mapping[str, Any]) -> Link:
    """Start the virtual device `address`; `options` are those of the device (`cores`, `model`, ...).

    Raises `UsageError` for an unknown device or option, `MissingPackageError` for what it needs, `DeviceError` when it would not start.
    """
    if address.startswith(HEXAGON) and address.removeprefix(HEXAGON) in ARCHS:
        if options:
            raise UsageError(f"virtual:{address} has no option {next(iter(options))!r}")
        return VirtualHexagon(int(address.removeprefix(HEXAGON)))
    if address not in NAMES:
        raise UsageError(f"there is no virtual device {address!r}", close_match(address, (*NAMES, *(HEXAGON + arch for arch in ARCHS))))
    if address == "dpu":
        return VirtualDpu(options)
    if address in virtual_mcu.NAMES:
        return virtual_mcu.connect(address, options)
    return VirtualAndroid(_device_options(options))


class VirtualDpu:
    """A board with a DPU: jobs run in a process of this machine, by the integer reference (`edgekit.virtual.dpu`)."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._link = local.connect("", options)

    def facts(self) -> Facts:
        """A 64-bit Arm Linux board, marked as emulated."""
        found = self._link.facts()
        return msgspec.structs.replace(found, emulated=True, os="linux", abi="aarch64", platform="linux-aarch64", model="virtual DPU")

    def execute(self, job: Path, result: Path, timeout_s: float) -> None:
        """Run a job folder."""
        self._link.execute(job, result, timeout_s)

    def close(self) -> None:
        """Nothing stays open."""
        self._link.close()


class VirtualAndroid:
    """A virtual Android device behind an adb server of its own: the path of a phone, to the byte."""

    def __init__(self, options: android.DeviceOptions) -> None:
        with contextlib.ExitStack() as stack:
            self._device = android.start(options)
            stack.callback(android.stop, self._device.serial)
            port = _free_port()
            self._link = adb.connect(self._device.address, {"server_port": port, "start_server": True, "usb": False})
            stack.callback(_stop_server, port)
            self._stack = stack.pop_all()

    def facts(self) -> Facts:
        """What the device says of itself; it is marked as emulated."""
        return msgspec.structs.replace(self._link.facts(), emulated=True)

    def execute(self, job: Path, result: Path, timeout_s: float) -> None:
        """Run a job folder over adb."""
        self._link.execute(job, result, timeout_s)

    def close(self) -> None:
        """Disconnect, and stop the server and the device."""
        with self._stack:
            self._link.close()


class VirtualHexagon:
    """Qualcomm's HTP simulator on this machine, in a process of its own, standing for one Hexagon generation.

    It computes as the chip does. It does not check the generation itself, so that is compared here, before anything runs.
    """

    def __init__(self, arch: int) -> None:
        self._arch, self._link = arch, local.connect("", {})

    def facts(self) -> Facts:
        """What the device stands for; it is marked as emulated."""
        details = {"hexagon_arch": str(self._arch), "simulator": "onnxruntime-qnn"}
        return msgspec.structs.replace(self._link.facts(), model=f"Hexagon v{self._arch} (simulator)", emulated=True, details=details)

    def execute(self, job: Path, result: Path, timeout_s: float) -> None:
        """Run a job folder. Raises `UsageError` when the artifact was built for another generation."""
        built = _built_for(job)
        if built is not None and built != self._arch:
            what = f"the artifact was built for Hexagon v{built}, and the device is v{self._arch}: its context binary would not load there"
            raise UsageError(what, f"package it for hexagon-v{self._arch}")
        self._link.execute(job, result, timeout_s)

    def close(self) -> None:
        """Nothing is held."""
        self._link.close()


class _Build(msgspec.Struct, frozen=True):
    arch: int


def _built_for(job: Path) -> int | None:
    """The generation that the job's artifact says it was built for; None when it says nothing."""
    path = inside(job, f"{read_job(job).artifact}/build.json")
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Build).arch
    except (OSError, msgspec.DecodeError):
        return None


def _device_options(options: Mapping[str, Any]) -> android.DeviceOptions:
    try:
        return msgspec.convert(dict(options), android.DeviceOptions, strict=False)
    except msgspec.ValidationError as error:
        known = [field.name for field in msgspec.structs.fields(android.DeviceOptions)]
        raise UsageError(f"virtual:android-arm64: {error}", f"options are {', '.join(known)}") from error


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _stop_server(port: int) -> None:
    """End the server that was started for this device alone; it may be gone already."""
    with contextlib.suppress(Exception):
        adb_server.ask(adb_server.Server("127.0.0.1", port, 0, 5.0), "host:kill")
