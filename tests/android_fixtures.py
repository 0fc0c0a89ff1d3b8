"""A started virtual Android device and private adb servers, for every test that needs a phone.

Import the fixtures by name: `from tests.android_fixtures import adb, phone` (pytest finds them in the importing module). No test touches the
adb server of port 5037: each server here has its own port, home and life time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from edgekit.errors import EdgekitError
from edgekit.virtual import android
from edgekit.virtual.android import DeviceOptions, Faults, RunningDevice

ADB_KINDS = ("system", "bundled")


@dataclass(frozen=True)
class Adb:
    """One adb program with a server of its own."""

    program: str
    port: int
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to reach this server and no other."""
        return os.environ | {
            "ANDROID_ADB_SERVER_PORT": str(self.port),
            "HOME": str(self.home),
            "ANDROID_SDK_HOME": str(self.home),
            "ANDROID_USER_HOME": str(self.home),
            "TMPDIR": str(self.home),  # where the server writes its log
            "ADB_MDNS": "0",
            "ADB_LIBUSB": "0",  # a recent adb waits 3 s for USB where there is none
        }

    def run(self, *arguments: str, stdin: bytes | None = None, timeout_s: float = 60.0) -> subprocess.CompletedProcess[bytes]:
        """Run the adb program; whatever it says and its exit code come back."""
        command = [self.program, *arguments]
        return subprocess.run(command, env=self.environment, input=stdin or b"", capture_output=True, timeout=timeout_s, check=False)

    def on(self, device: RunningDevice, *arguments: str, stdin: bytes | None = None, timeout_s: float = 60.0) -> subprocess.CompletedProcess[bytes]:
        """Run the adb program for one device."""
        return self.run("-s", device.address, *arguments, stdin=stdin, timeout_s=timeout_s)

    def connect(self, device: RunningDevice) -> None:
        """Make the server know the device, and wait until it is there."""
        self.run("connect", device.address)
        self.await_state(device, "device")

    def state(self, device: RunningDevice) -> str:
        """What `adb devices` says of the device: `device`, `offline`, `unauthorized`, or nothing."""
        rows = (line.split() for line in self.run("devices").stdout.decode().splitlines())
        return next((row[1] for row in rows if row and row[0] == device.address), "")

    def await_state(self, device: RunningDevice, wanted: str, timeout_s: float = 30.0) -> float:
        """Wait until `adb devices` says `wanted`; the seconds that took. Fails the test after `timeout_s`."""
        started = time.monotonic()
        while (now := self.state(device)) != wanted:
            assert time.monotonic() - started < timeout_s, f"{device.address} is {now or 'unknown'} after {timeout_s} s, not {wanted}"
            time.sleep(0.05)
        return time.monotonic() - started


def require_device() -> None:
    """Skip, with the reason, on a machine that cannot run a virtual Android device. Under CI that is a failure, and the userland is installed."""
    try:
        if os.environ.get("CI") and not android.installed():
            android.install()
        lacks = "; ".join(android.missing())
    except EdgekitError as error:
        lacks = str(error)
    if lacks:
        _refuse(f"the virtual Android device lacks {lacks}")


def adb_program(kind: str) -> str:
    """The path of the system's adb or of the one that adbutils brings; skips (fails under CI) where there is none."""
    if kind == "system":
        found = shutil.which("adb")
        return found or _refuse("adb is not installed: apt-get install -y adb")
    spec = find_spec("adbutils")
    bundled = Path(spec.origin or "").parent / "binaries" / "adb" if spec else None
    return str(bundled) if bundled and bundled.is_file() else _refuse("adbutils brings no adb here: pip install adbutils")


@contextlib.contextmanager
def private_adb(kind: str, home: Path) -> Iterator[Adb]:
    """An adb server on a port of its own, killed at the end."""
    server = Adb(adb_program(kind), free_port(), home)
    started = server.run("start-server")
    assert started.returncode == 0, started.stderr.decode()
    try:
        yield server
    finally:
        server.run("kill-server")


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module", params=["bundled", pytest.param("system", marks=pytest.mark.slow)])
def adb(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adb]:
    """A private adb server, once for each adb program."""
    require_device()
    with private_adb(request.param, tmp_path_factory.mktemp("adb-home")) as server:
        yield server


@pytest.fixture
def phone(adb: Adb) -> Iterator[RunningDevice]:
    """A healthy device of its own for this test, connected to `adb`."""
    with android.device() as started:
        adb.connect(started)
        yield started


@pytest.fixture
def start_phone(adb: Adb) -> Iterator[Callable[..., RunningDevice]]:
    """A function `(options, faults, connect=True)` that starts devices, which end with the test."""
    with contextlib.ExitStack() as stack:

        def start(options: DeviceOptions | None = None, faults: Faults = android.HEALTHY, *, connect: bool = True) -> RunningDevice:
            started = stack.enter_context(android.device(options, faults))
            if connect:
                adb.connect(started)
            return started

        yield start


def _refuse(reason: str) -> str:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
