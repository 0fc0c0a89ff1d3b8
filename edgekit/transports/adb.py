"""Devices over adb: `adb:SERIAL`, `adb:HOST:PORT`, or `adb:` for the only one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit.errors import DeviceError
from edgekit.transports import Facts, adb_server, adb_shell, adb_sync, probe, staged
from edgekit.transports.adb_errors import translated
from edgekit.transports.adb_server import AdbOptions, Server
from edgekit.transports.failures import Retry, failure, parse_options, reason_of, too_much
from edgekit.transports.staged import Completed, Upload

FORM = "adb:SERIAL, adb:HOST:PORT"
BASE = "/data/local/tmp/edgekit"
_PING_S = 3.0


def check(place: str) -> None:
    """Any text may be a serial."""


def connect(address: str, options: Mapping[str, Any]) -> AdbLink:
    """Find the device behind `SERIAL`, `HOST:PORT` or `` (the only one), and see that it is ready.

    Raises `DeviceError`, `UsageError` for an unknown option, `MissingPackageError` without adbutils.
    """
    chosen = parse_options(options, AdbOptions, "adb")
    server = adb_server.find(chosen)
    serial, connected = adb_server.choose(server, address, chosen.reconnect_s)
    return AdbLink(server, serial, chosen, connected)


class AdbLink:
    """A device behind an adb server. `retries` lists what had to be done again."""

    def __init__(self, server: Server, serial: str, policy: AdbOptions, connected: bool) -> None:
        self.device = serial
        self.base = policy.base or BASE
        self.policy = policy
        self.retries: list[Retry] = []
        self._server = server
        self._connected = connected

    def facts(self) -> Facts:
        """What the device says of itself, in one round trip. Raises `DeviceError`."""
        done = staged.retried(self, "facts", lambda: self.shell(probe.SCRIPT, b"", self.policy.stall_s))
        if done.code:
            raise failure(self.device, reason_of(done.stderr), f"the device could not be asked what it is: {done.stderr.strip()[-200:]}")
        return probe.read(done.stdout, self.device, {"adb_server": f"1.0.{self._server.version}"})

    def execute(self, job: Path, result: Path, timeout_s: float) -> None:
        """Run a native job folder. See `staged.execute` for what is raised."""
        staged.execute(self, job, result, timeout_s)

    def close(self) -> None:
        """Disconnect a network device that was connected for this link."""
        if self._connected:
            adb_server.disconnect(self._server, self.device)

    def shell(self, script: str, stdin: bytes, timeout_s: float) -> Completed:
        """Run a script by the shell service's version 2; a non-zero exit code is a value. Raises `DeviceError`."""
        try:
            with translated(self.device, "running a command"), self._channel(timeout_s) as channel:
                channel.send_command("shell,v2,raw:" + script)
                channel.check_okay()
                return adb_shell.converse(channel.conn, stdin, timeout_s)
        except DeviceError as error:
            self._check_modern(error)
            raise

    def push(self, files: Sequence[Upload]) -> None:
        """Carry files over one sync session. Raises `DeviceError`."""
        with translated(self.device, "pushing"), self._sync() as channel:
            for file in files:
                self._push(channel.conn, file)

    def pull(self, folder: str, names: Sequence[str], into: Path, limit_bytes: int) -> None:
        """Bring files back over one sync session. Raises `DeviceError`."""
        with translated(self.device, "pulling"), self._sync() as channel:
            for name in names:
                source = f"{self.base}/{folder}/{name}"
                try:
                    limit_bytes -= adb_sync.receive_file(channel.conn, source, into / name, limit_bytes)
                except adb_sync.SyncFailedError as error:
                    raise failure(self.device, reason_of(str(error)), f"{name} could not be read: {error}") from error
                except adb_sync.TooLargeError as error:
                    raise too_much(self.device, self.policy.result_bytes) from error

    def recover(self) -> None:
        """Wait until the device answers again, redialing a network device. Raises `DeviceError` with what it is when it does not."""
        deadline = time.monotonic() + self.policy.reconnect_s
        while True:
            try:
                return self._revive(deadline - time.monotonic())
            except DeviceError as error:
                if error.reason not in ("dropped", "offline", "powered-off", "not-found") or time.monotonic() > deadline:
                    raise self._gone(error) from error
            time.sleep(0.1)

    def _revive(self, left_s: float) -> None:
        found = adb_server.states(self._server)
        if adb_server.is_network(self.device) and found.get(self.device) != "device":
            adb_server.connect(self._server, self.device, found)
        adb_server.await_ready(self._server, self.device, max(0.0, min(left_s, 1.0)), returning=True)
        self.shell("exit 0", b"", _PING_S)

    def _gone(self, error: DeviceError) -> DeviceError:
        reason = "powered-off" if error.reason in ("not-found", "dropped") else error.reason
        return failure(self.device, reason, f"the device dropped and was not back after {self.policy.reconnect_s:g} s ({error.message})")

    def _push(self, channel: Any, file: Upload) -> None:
        try:
            adb_sync.send_file(channel, file.path, f"{self.base}/{file.remote}", file.mode)
        except adb_sync.SyncFailedError as error:
            raise failure(self.device, reason_of(str(error)), f"{file.path.name} could not be pushed: {error}") from error

    def _check_modern(self, error: DeviceError) -> None:
        """Before Android 7 there is no shell service of version 2: the request is closed, which looks like a drop."""
        if str(error.__cause__) != "closed":
            return
        features = "shell_v2"
        with contextlib.suppress(DeviceError), translated(self.device, "asking for features"):
            features = adb_server.ask(self._server, f"host-serial:{self.device}:features")
        if "shell_v2" not in features.split(","):
            what = "the device's adb has no shell service of version 2"
            raise failure(self.device, "unsupported", what, "edgekit needs Android 8 or later") from error

    @contextlib.contextmanager
    def _channel(self, timeout_s: float) -> Iterator[Any]:
        """A connection switched to this device."""
        channel = adb_server.open_channel(self._server, timeout_s)
        try:
            modern = self._server.version >= 41
            channel.send_command(f"host:tport:serial:{self.device}" if modern else f"host:transport:{self.device}")
            channel.check_okay()
            if modern:
                channel.read_exact(8)  # the transport's id
            yield channel
        finally:
            channel.conn.close()

    @contextlib.contextmanager
    def _sync(self) -> Iterator[Any]:
        with self._channel(self.policy.stall_s) as channel:
            channel.send_command("sync:")
            channel.check_okay()
            yield channel
