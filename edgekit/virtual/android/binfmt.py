"""Teach the kernel to run arm64 programs by qemu, without touching a registration that is already there."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from edgekit.errors import MissingPackageError

MOUNT_POINT = Path("/proc/sys/fs/binfmt_misc")
NAME = "edgekit-aarch64"
PROGRAM = "qemu-aarch64-static"

# an ELF file of 64 bits, little-endian, of type EXEC or DYN (the mask ignores the last bit), for the machine AArch64 (183)
_MAGIC = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00"
_MASK = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"


def needed() -> bool:
    """Whether this machine cannot run arm64 programs by itself."""
    return platform.machine() not in ("aarch64", "arm64")


def registered(mount_point: Path = MOUNT_POINT) -> bool:
    """Whether some enabled registration runs arm64 programs in any root (flag F: the interpreter was opened when it was registered)."""
    if not (mount_point / "status").is_file():
        return False
    entries = (path.read_text() for path in mount_point.iterdir() if path.name not in ("register", "status"))
    return any(entry.startswith("enabled") and f"magic {_MAGIC.hex()}" in entry and "F" in _flags(entry) for entry in entries)


def register(mount_point: Path = MOUNT_POINT) -> None:
    """Register qemu where binfmt_misc is mounted, with the flags F (see `registered`) and P (keep argv[0], which busybox needs).

    Does nothing when a registration is there. Raises `MissingPackageError` without qemu, `OSError` when the kernel refuses.
    """
    if registered(mount_point):
        return
    (mount_point / "register").write_bytes(line(interpreter()))


def interpreter() -> str:
    """The path of qemu. Raises `MissingPackageError` when it is not installed."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise MissingPackageError(f"the program {PROGRAM} is not installed", "apt-get install -y qemu-user-static")
    return found


def line(program: str) -> bytes:
    """The line to write to `register`."""
    return b":%s:M::%s:%s:%s:PF" % (NAME.encode(), _escaped(_MAGIC), _escaped(_MASK), os.fsencode(program))


def ensure_on_host() -> bool:
    """As root, mount binfmt_misc where it is not and register qemu; whether arm64 programs run on the host afterwards."""
    if not needed() or registered():
        return True
    if os.geteuid() != 0:
        return False
    if not (MOUNT_POINT / "status").is_file():
        mount = shutil.which("mount") or "/bin/mount"
        subprocess.run([mount, "-t", "binfmt_misc", "binfmt_misc", str(MOUNT_POINT)], capture_output=True, check=False)
    try:
        register()
    except OSError:  # a container whose root may not: a namespace of its own is tried next
        return False
    return registered()


def _escaped(data: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in data)


def _flags(entry: str) -> str:
    return next((row.removeprefix("flags:").strip() for row in entry.splitlines() if row.startswith("flags:")), "")
