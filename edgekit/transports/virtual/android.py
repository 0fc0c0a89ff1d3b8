"""`virtual:android-arm64`: a virtual Android device behind an adb server of its own: the path of a phone, to the byte."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from edgekit.errors import UsageError
from edgekit.transports import Facts, adb, adb_server
from edgekit.virtual import android


def connect(name: str, options: Mapping[str, Any]) -> VirtualAndroid:
    """Start a device; `options` are `android.DeviceOptions`, and `faults`: an `android.Faults`, or one as JSON text.

    Raises `UsageError`, `MissingPackageError`, `DeviceError`.
    """
    rest = {key: value for key, value in options.items() if key != "faults"}
    return VirtualAndroid(_device_options(name, rest), _faults(name, options.get("faults", android.HEALTHY)))


def missing() -> tuple[str, ...]:
    """What this machine lacks for it."""
    return android.missing()


class VirtualAndroid:
    """A virtual Android device behind an adb server of its own."""

    def __init__(self, options: android.DeviceOptions, faults: android.Faults) -> None:
        with contextlib.ExitStack() as stack:
            self._device = android.start(options, faults)
            stack.callback(android.stop, self._device.serial)
            port = _free_port()
            stack.callback(_stop_server, port)
            self._link = adb.connect(self._device.address, {"server_port": port, "start_server": True, "usb": False})
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


def _device_options(name: str, options: Mapping[str, Any]) -> android.DeviceOptions:
    try:
        return msgspec.convert(dict(options), android.DeviceOptions, strict=False)
    except msgspec.ValidationError as error:
        known = [field.name for field in msgspec.structs.fields(android.DeviceOptions)]
        raise UsageError(f"virtual:{name}: {error}", f"options are {', '.join(known)}, faults") from error


def _faults(name: str, given: Any) -> android.Faults:
    try:
        return msgspec.json.decode(given, type=android.Faults) if isinstance(given, str) else msgspec.convert(given, android.Faults)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        hint = """faults are JSON, such as {"events": [{"stage": "push", "action": "drop", "after_bytes": 1000000}]}"""
        raise UsageError(f"virtual:{name}: faults: {error}", hint) from error


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _stop_server(port: int) -> None:
    """End the server that was started for this device alone; it may be gone already."""
    with contextlib.suppress(Exception):  # adbutils raises what its sockets raise
        adb_server.ask(adb_server.Server("127.0.0.1", port, 0, 5.0), "host:kill")
