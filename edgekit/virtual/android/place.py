"""The device's own root: made out of mounts that only this process and its children see, or out of a copy where mounts are not allowed.

The read-only userland is shared by all devices; what a device writes lives in memory and is gone with its process. Programs of the device have no
capabilities, and see no process but the device's own; a device made of a copy has no such view of its own, and is meant for containers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import time
from pathlib import Path

from edgekit.errors import DeviceError, UsageError
from edgekit.virtual.android import binfmt, mounts, userland
from edgekit.virtual.android.faults import Faults
from edgekit.virtual.android.options import DeviceOptions

DATA, SDCARD = "/data", "/sdcard"

_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
_KEPT = mounts.NO_SUID | mounts.NO_DEVICES
_BUSY_S = 2.0


def isolated() -> bool:
    """Whether this process is the first of a process namespace of its own: then everything below it ends with it."""
    return os.getpid() == 1


def enter(root: Path, userland_folder: Path, options: DeviceOptions) -> None:
    """Furnish the empty folder `root` and make it this process's root. Raises `OSError` or `DeviceError`."""
    if isolated():
        _register_qemu(root)
        _mount_all(root, userland_folder, options)
    else:
        shutil.copytree(userland_folder, root, symlinks=True, dirs_exist_ok=True)
        for name in ("dev", "sys", "proc", "sdcard"):
            (root / name).mkdir(exist_ok=True)
        _make_devices(root)
    userland.write(root, options)
    _show_proc(root)
    (root / "data/local/tmp").mkdir(parents=True)
    (root / "data/local/tmp").chmod(0o771)
    if isolated():
        mounts.mount("", root, flags=mounts.REMOUNT | mounts.BIND | mounts.READ_ONLY | _KEPT)
    os.chroot(root)
    os.chdir("/")
    mounts.give_programs_no_capabilities()


def restrict(faults: Faults, options: DeviceOptions) -> None:
    """Make the data partition as small, read-only or program-less as `faults` say. Raises `UsageError` where mounts are not allowed."""
    if not isolated():
        if faults.restricts_files:
            raise UsageError(
                "the faults free_bytes, read_only and noexec need mount namespaces, which this machine does not allow",
                "in a container: docker run --privileged, or allow user namespaces",
            )
        return
    room = os.statvfs(DATA)
    used = (room.f_blocks - room.f_bfree) * room.f_frsize
    size = options.data_bytes if faults.free_bytes is None else max(used + faults.free_bytes, room.f_frsize)
    flags = _KEPT | (mounts.READ_ONLY if faults.read_only else 0) | (mounts.NO_EXEC if faults.noexec else 0)
    _remount(DATA, flags, f"size={size}")
    _remount(SDCARD, _KEPT | (mounts.READ_ONLY if faults.read_only else 0) | (mounts.NO_EXEC if options.sdcard_noexec else 0), "")


def kill_programs() -> None:
    """End every other process of the device (outside a namespace, links end what they started)."""
    if isolated():
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)


def _register_qemu(root: Path) -> None:
    """Without root, qemu is registered in the user namespace alone, which Linux 6.7 and later allow."""
    if not binfmt.needed() or binfmt.registered():
        return
    point = root / "binfmt"
    point.mkdir()
    try:
        mounts.mount("binfmt_misc", point, "binfmt_misc")
        binfmt.register(point)
    except OSError as error:
        raise DeviceError(
            f"this kernel does not run arm64 programs, and did not let qemu be registered ({error.strerror})",
            "register it once as root: apt-get install -y qemu-user-static binfmt-support",
            reason="binfmt",
        ) from error


def _mount_all(root: Path, userland_folder: Path, options: DeviceOptions) -> None:
    mounts.mount("device", root, "tmpfs", mounts.NO_SUID, "mode=755,size=64m")
    for entry in sorted(userland_folder.iterdir()):
        if entry.is_symlink():
            (root / entry.name).symlink_to(entry.readlink())
        else:
            (root / entry.name).mkdir()
            mounts.bind(entry, root / entry.name, read_only=True)
    sdcard_flags = _KEPT | (mounts.NO_EXEC if options.sdcard_noexec else 0)
    for name, flags in (("dev", mounts.NO_SUID), ("sys", _KEPT), ("data", _KEPT), ("sdcard", sdcard_flags)):
        (root / name).mkdir()
        mounts.mount(name, root / name, "tmpfs", flags, "mode=755")
    for name in _DEVICES:
        (root / "dev" / name).touch()
        mounts.bind(f"/dev/{name}", root / "dev" / name)
    (root / "proc").mkdir()


def _show_proc(root: Path) -> None:
    """A process list of the device's own where the kernel allows it, and in any case the device's processor."""
    description = root / "dev/.cpuinfo"
    if isolated():
        with contextlib.suppress(OSError):
            mounts.mount("proc", root / "proc", "proc", _KEPT | mounts.NO_EXEC | mounts.READ_ONLY)
            mounts.bind(description, root / "proc/cpuinfo", read_only=True)
            return
    shutil.copy(description, root / "proc/cpuinfo")


def _make_devices(root: Path) -> None:
    for name, numbers in _DEVICES.items():
        os.mknod(root / "dev" / name, 0o020666, os.makedev(*numbers))
        (root / "dev" / name).chmod(0o666)


def _remount(target: str, flags: int, data: str) -> None:
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            mounts.mount("", target, flags=mounts.REMOUNT | flags, data=data)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:  # busy: a file is open for writing
                raise
            time.sleep(0.05)
        else:
            return
