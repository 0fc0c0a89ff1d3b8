"""Start, find, change and stop the processes that are devices."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edgekit import places
from edgekit.errors import DeviceError, MissingPackageError, UsageError
from edgekit.virtual.android import binfmt, control, rootfs
from edgekit.virtual.android.faults import HEALTHY, Faults
from edgekit.virtual.android.options import DeviceOptions
from edgekit.virtual.android.state import LOCK, LOG, REQUEST, STATE, Ready, RunningDevice, StartRequest

_START_S = 30.0
_STOP_S = 5.0
_STALE_S = 60.0
_PARENTS: dict[str, subprocess.Popen[bytes]] = {}


def state_folder() -> Path:
    """Where running devices are noted."""
    return places.state() / "virtual-android"


def start(options: DeviceOptions | None = None, faults: Faults = HEALTHY) -> RunningDevice:
    """Start a device and wait until `adb connect` can reach it.

    Raises `MissingPackageError` with the command to type when the userland or a program is absent, `DeviceError` when the device would not
    start, `UsageError` for options that cannot be.
    """
    asked = options or DeviceOptions()
    lacks = rootfs.missing()
    if lacks:
        raise MissingPackageError(f"the virtual Android device lacks {lacks[0].partition(': ')[0]}", lacks[0].partition(": ")[2])
    asked = msgspec.structs.replace(asked, serial=asked.serial or f"EKV{secrets.token_hex(4).upper()}")
    folder = _claim(asked.serial)
    try:
        (folder / REQUEST).write_bytes(msgspec.json.encode(StartRequest(asked, faults)))
        return _launch(folder, asked)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def running() -> tuple[RunningDevice, ...]:
    """The devices that run now, by serial; what dead ones left behind is removed."""
    found = []
    for folder in sorted(state_folder().glob("*/")):
        if _alive(folder):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                found.append(msgspec.json.decode((folder / STATE).read_bytes(), type=RunningDevice))
        elif (folder / STATE).exists() or _age_s(folder) > _STALE_S:
            shutil.rmtree(folder, ignore_errors=True)
    return tuple(found)


def stop(serial: str) -> None:
    """Stop a device and remove its files. Raises `DeviceError` when there is none of that name."""
    folder = _folder_of(serial)
    with contextlib.suppress(DeviceError):
        control.ask(folder, serial, control.Request("stop"))
    if not _wait_dead(folder, _STOP_S):
        with contextlib.suppress(OSError):
            os.kill(msgspec.json.decode((folder / STATE).read_bytes(), type=RunningDevice).pid, signal.SIGKILL)
        _wait_dead(folder, _STOP_S)
    _kill_strays(folder)
    parent = _PARENTS.pop(serial, None)
    if parent is not None:
        if parent.stdin:
            parent.stdin.close()
        parent.wait(_STOP_S)
    shutil.rmtree(folder, ignore_errors=True)


def set_faults(serial: str, faults: Faults) -> None:
    """Replace the faults of a running device. Raises `DeviceError`."""
    control.ask(_folder_of(serial), serial, control.Request("faults", faults))


def state(serial: str) -> control.State:
    """The faults in force on a running device, and those that have happened. Raises `DeviceError`."""
    return control.ask(_folder_of(serial), serial, control.Request("state"))


def power(serial: str, *, on: bool) -> None:
    """Switch a device on, or off. Raises `DeviceError`."""
    control.ask(_folder_of(serial), serial, control.Request("power-on" if on else "power-off"))


@contextlib.contextmanager
def device(options: DeviceOptions | None = None, faults: Faults = HEALTHY) -> Iterator[RunningDevice]:
    """A device for the length of a `with` block. Raises as `start` does."""
    started = start(options, faults)
    try:
        yield started
    finally:
        with contextlib.suppress(DeviceError):  # it may have been stopped inside
            stop(started.serial)


def _claim(serial: str) -> Path:
    if not serial.replace("-", "").replace("_", "").replace(".", "").isalnum() or serial.startswith("."):
        raise UsageError(f"{serial!r} is not a serial number", "use letters, digits, - and _")
    running()
    folder = state_folder() / serial
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise UsageError(f"a virtual device {serial} is already running", "choose another serial number, or stop that one") from None
    return folder


def _launch(folder: Path, options: DeviceOptions) -> RunningDevice:
    prefix = _isolation(options)
    command = [*prefix, sys.executable, "-P", "-m", "edgekit.virtual.android", str(folder), str(rootfs.folder())]
    source = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH", ""))))
    stdin = subprocess.PIPE if options.dies_with_parent else subprocess.DEVNULL
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=log, env=os.environ | {"PYTHONPATH": path}, start_new_session=True, cwd="/"
        )
    try:
        ready = _await_ready(process, folder)
        if not ready.port:
            raise DeviceError(f"the virtual device would not start: {ready.error}", ready.hint, device=options.serial, reason="start")
    except BaseException:
        process.kill()
        process.wait()
        raise
    _PARENTS[options.serial] = process
    address, lasting = f"{options.host}:{ready.port}", not options.dies_with_parent
    found = RunningDevice(options.serial, address, process.pid, options.model, str(folder), bool(prefix), lasting)
    part = folder / f".{STATE}.part"
    part.write_bytes(msgspec.json.encode(found))
    part.replace(folder / STATE)
    return found


def _isolation(options: DeviceOptions) -> list[str]:
    """The command that gives the device namespaces of its own; empty where root may not make them and a copy of the userland must do."""
    on_host = binfmt.ensure_on_host()
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--propagation", "private"]
    with_user = [*namespaces, "--user", "--map-root-user"]
    root = os.geteuid() == 0
    for candidate in [namespaces] * (root and on_host) + [with_user]:
        if options.isolated is not False and subprocess.run([*candidate, "true"], capture_output=True, check=False).returncode == 0:
            return candidate
    if root and on_host and not options.isolated:
        return []
    raise DeviceError(
        "this machine lets neither namespaces be made nor root change the root folder",
        "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1), or run as root with qemu-user-static registered in binfmt_misc",
        reason="isolation",
    )


def _await_ready(process: subprocess.Popen[bytes], folder: Path) -> Ready:
    assert process.stdout is not None
    with process.stdout as stdout:
        line = stdout.readline() if select.select([stdout], [], [], _START_S)[0] else b""
    try:
        return msgspec.json.decode(line, type=Ready)
    except msgspec.DecodeError:
        said = " ".join((folder / LOG).read_text(errors="replace").split())[-400:]
        return Ready(error=said or f"it said nothing for {_START_S:.0f} s")


def _folder_of(serial: str) -> Path:
    folder = state_folder() / serial
    if not serial or "/" in serial or not (folder / STATE).is_file() or not _alive(folder):
        known = ", ".join(found.serial for found in running())
        raise DeviceError(f"no virtual device {serial!r} is running", f"running: {known or 'none'}", device=serial, reason="not-running")
    return folder


def _alive(folder: Path) -> bool:
    """Whether the device's process holds its lock: unlike a process number, a lock is never taken over by a stranger."""
    try:
        with (folder / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _kill_strays(folder: Path) -> None:
    """End what a device without namespaces has left running: the processes whose root is its folder."""
    for link in Path("/proc").glob("[0-9]*/root"):
        with contextlib.suppress(OSError):
            if link.readlink() == folder / "root":
                os.kill(int(link.parent.name), signal.SIGKILL)


def _age_s(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except FileNotFoundError:  # another process was faster
        return 0.0


def _wait_dead(folder: Path, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while _alive(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
