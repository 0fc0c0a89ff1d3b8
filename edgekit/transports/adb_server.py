"""The adb server on this machine: found, never stopped, started only when asked; and which of its devices is meant."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from typing import Annotated, Any

import msgspec

from edgekit import decimals
from edgekit.errors import DeviceError, MissingPackageError, UsageError, require
from edgekit.transports.adb_errors import reason_of_adb, translated
from edgekit.transports.failures import Policy, failure

OLDEST_VERSION = 39
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\s]+):([0-9]{1,5})")


class AdbOptions(Policy, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`server_port` 0 is ANDROID_ADB_SERVER_PORT or 5037. `program` is the adb to start a server with: ADBUTILS_ADB_PATH, PATH's or adbutils' own.

    A server that is started without `usb` does not wait for the USB of a machine that has none.
    """

    server_host: str = ""
    server_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    start_server: bool = False
    usb: bool = True
    program: str = ""


class Server(msgspec.Struct, frozen=True):
    """A running server: where it listens, the protocol version it speaks (41 is adb 1.0.41), and how long it may be silent."""

    host: str
    port: int
    version: int
    silence_s: float


def find(options: AdbOptions) -> Server:
    """The running server, started first if the options say so. Raises `DeviceError` (`server-missing`, `server-version`)."""
    require("adbutils", extra="adb", purpose="reaching a device over adb")
    host, port = _place(options)
    if not _answers(host, port):
        if not options.start_server:
            raise failure("adb", "server-missing", f"no adb server answers at {host}:{port}")
        _start(port, options)
    with translated("adb", "asking the adb server for its version"):
        version = int(ask(Server(host, port, 0, options.stall_s), "host:version"), 16)
    if version < OLDEST_VERSION:
        ours = program_version(options)
        raise failure("adb", "server-version", f"the running adb server is 1.0.{version}, too old to use; the adb program here is {ours}")
    return Server(host, port, version, options.stall_s)


def attached(options: AdbOptions) -> dict[str, str]:
    """State by serial of what is attached now; nothing where no server runs, for none is started. Raises `DeviceError`, `MissingPackageError`."""
    return states(find(options)) if _answers(*_place(options)) else {}


def open_channel(server: Server, timeout_s: float) -> Any:
    """A connection to the server (`adbutils.AdbConnection`). Unlike adbutils alone, it never starts a server. Raises adbutils' errors."""
    import adbutils
    from adbutils.errors import AdbConnectionError

    if not _answers(server.host, server.port):
        raise AdbConnectionError("connect to adb server failed")
    channel = adbutils.AdbClient(server.host, server.port).make_connection(timeout=timeout_s)
    # Without this each small request of a session waits for a delayed acknowledgement, 40 ms.
    channel.conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return channel


def ask(server: Server, command: str, timeout_s: float = 0.0) -> str:
    """Send a host command and return its answer. Raises adbutils' errors."""
    channel = open_channel(server, timeout_s or server.silence_s)
    try:
        channel.send_command(command)
        channel.check_okay()
        return str(channel.read_string_block())
    finally:
        channel.conn.close()


def states(server: Server) -> dict[str, str]:
    """State by serial. Serials may hold spaces: adb parts the two with a tab."""
    with translated("adb", "listing devices"):
        rows = [line.rsplit("\t", 1) for line in ask(server, "host:devices").splitlines()]
    return {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}


def choose(server: Server, address: str, reconnect_s: float) -> tuple[str, bool]:
    """The serial that an address means, ready for use, and whether it was connected for that. Raises `DeviceError`."""
    found = states(server)
    if not address:
        address = _only(found)
    connected = False
    if is_network(address) and found.get(address) != "device":
        connect(server, address, found)
        connected = address not in found
    await_ready(server, address, reconnect_s)
    return address, connected


def is_network(address: str) -> bool:
    """Whether the address is HOST:PORT, which adb has to be told to connect to."""
    return _HOST_PORT.fullmatch(address) is not None


def connect(server: Server, address: str, found: dict[str, str]) -> None:
    """`adb connect`. An entry that is there but offline is dropped first: adb does not redial it. Raises `DeviceError`."""
    with translated(address, "connecting"):
        if found.get(address) == "offline":
            disconnect(server, address)
        answer = ask(server, f"host:connect:{address}")
    if not answer.startswith(("connected to", "already connected to", "failed to authenticate")):
        raise failure(address, reason_of_adb(answer), answer)


def disconnect(server: Server, address: str) -> None:
    """`adb disconnect`; that it was not connected is no error."""
    try:
        with translated(address, "disconnecting"):
            ask(server, f"host:disconnect:{address}")
    except DeviceError:
        return


def await_ready(server: Server, serial: str, limit_s: float, returning: bool = False) -> None:
    """Wait until a device is in the state `device`; `returning` devices may be absent meanwhile.

    Raises `DeviceError` with what it is instead: after `limit_s`, or sooner where waiting cannot help.
    """
    start = time.monotonic()
    while (state := states(server).get(serial, "absent")) != "device":
        if time.monotonic() - start > _patience_s(state, limit_s, returning or is_network(serial)):
            raise _not_ready(server, serial, state)
        if state == "absent" and is_network(serial):
            connect(server, serial, {})  # an entry that was going offline may vanish after the server has said it is connected
        time.sleep(0.05)


def _patience_s(state: str, limit_s: float, may_be_absent: bool) -> float:
    if state == "absent":
        return limit_s if may_be_absent else 0.0
    return {"offline": limit_s, "connecting": limit_s, "authorizing": limit_s, "unauthorized": min(limit_s, 1.0)}.get(state, 0.0)


def program_version(options: AdbOptions) -> str:
    """Version and path of the adb program here, for people."""
    try:
        program = _program(options)
        out = subprocess.run([program, "version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError, MissingPackageError):
        return "not found"
    version = re.search(r"version (\S+)", out)
    return f"{version[1] if version else 'of unknown version'} at {program}"


def _not_ready(server: Server, serial: str, state: str) -> DeviceError:
    if state == "absent":
        listed = ", ".join(f"{name} ({is_})" for name, is_ in states(server).items()) or "none"
        return failure(serial, "not-found", f"adb knows no such device; it lists: {listed}")
    if state.startswith("no permissions"):
        hint = "add a udev rule for it, or the user to the group plugdev"
        return failure(serial, "permission-denied", f"adb may not open the device ({state})", hint)
    reason = state if state in ("unauthorized", "offline") else "offline"
    return failure(serial, "unauthorized" if state == "authorizing" else reason, f"the device is in the state {state!r}")


def _only(found: dict[str, str]) -> str:
    ready = [serial for serial, state in found.items() if state == "device"]
    if len(ready) == 1:
        return ready[0]
    listed = ", ".join(f"{serial} ({state})" for serial, state in found.items())
    if not ready:
        if len(found) == 1:
            return next(iter(found))
        raise failure("adb", "no-device", f"no device is ready; adb lists: {listed or 'none'}")
    raise failure("adb", "several-devices", f"several devices are connected: {listed}")


def _place(options: AdbOptions) -> tuple[str, int]:
    host = options.server_host or os.environ.get("ANDROID_ADB_SERVER_HOST", "127.0.0.1")
    named = os.environ.get("ANDROID_ADB_SERVER_PORT", "5037")
    if not decimals.is_whole(named) or not 0 < int(named) < 1 << 16:
        raise UsageError(f"ANDROID_ADB_SERVER_PORT={named} is not a port", "unset it, or name a port from 1 to 65535")
    return host, options.server_port or int(named)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError:
        return False
    return True


def _start(port: int, options: AdbOptions) -> None:
    program = _program(options)
    command = [program, "-P", str(port), "start-server"]
    environment = None if options.usb else os.environ | {"ADB_LIBUSB": "0"}
    try:
        # The server inherits what it is started with: a pipe would stay open as long as it lives.
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise failure("adb", "server-missing", f"{program} could not start a server: {error}") from error
    if done.returncode:
        raise failure("adb", "server-missing", f"{program} could not start a server at port {port} (exit code {done.returncode})")


def _program(options: AdbOptions) -> str:
    import adbutils

    try:
        return options.program or str(adbutils.adb_path())
    except adbutils.AdbError as error:
        raise MissingPackageError(str(error), "install adb, or the wheel of adbutils for this system, which carries one") from error
