"""The control socket of a running device: one JSON line asks, one JSON line answers. It is not part of the link that is tested."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from edgekit.errors import DeviceError, EdgekitError
from edgekit.virtual.android.device import Device
from edgekit.virtual.android.faults import Faults

SOCKET = "control"
_TIMEOUT_S = 10.0


class Request(msgspec.Struct, frozen=True):
    """What to do."""

    operation: Literal["state", "faults", "power-on", "power-off", "stop"]
    faults: Faults | None = None


class State(msgspec.Struct, frozen=True):
    """What the device's process says: what went wrong so far, what is in force, and why a request failed."""

    powered: bool = True
    faults: Faults = Faults()
    fired: tuple[str, ...] = ()
    error: str = ""
    hint: str | None = None


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A path of the socket that fits the 108 bytes that a socket's path may have."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def listen(folder: Path) -> socket.socket:
    """Create the socket in the device's folder."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short_path(folder) as path:
        listener.bind(path)
    listener.listen(8)
    return listener


def answer(listener: socket.socket, device: Device, stop: Callable[[], None]) -> None:
    """Answer requests for ever."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer_one, args=(connection, device, stop), daemon=True).start()


def _answer_one(connection: socket.socket, device: Device, stop: Callable[[], None]) -> None:
    connection.settimeout(_TIMEOUT_S)
    with connection, connection.makefile("rwb") as file, contextlib.suppress(OSError):
        error, hint, stopping = "", None, False
        try:
            request = msgspec.json.decode(file.readline(), type=Request)
            stopping = request.operation == "stop"
            _do(request, device)
        except (EdgekitError, msgspec.DecodeError, OSError) as raised:
            error, hint = str(raised), getattr(raised, "hint", None)
        state = State(device.powered, device.armed.faults, tuple(device.armed.fired), error, hint)
        file.write(msgspec.json.encode(state) + b"\n")
        file.flush()
        if stopping:
            stop()


def _do(request: Request, device: Device) -> None:
    if request.operation == "faults" and request.faults is not None:
        device.set_faults(request.faults)
    elif request.operation == "power-on":
        device.power_on()
    elif request.operation == "power-off":
        device.power_off()


def ask(folder: Path, serial: str, request: Request) -> State:
    """Send one request to the device whose folder this is. Raises `DeviceError` when it does not answer or refuses."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, _short_path(folder) as path:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(path)
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as file:
                state = msgspec.json.decode(file.readline(), type=State)
    except (OSError, msgspec.DecodeError) as error:
        message = f"the virtual device {serial} does not answer ({error})"
        raise DeviceError(message, "is it still running?", device=serial, reason="not-running") from error
    if state.error:
        raise DeviceError(f"the virtual device {serial} refused {request.operation}: {state.error}", state.hint, device=serial, reason="refused")
    return state
