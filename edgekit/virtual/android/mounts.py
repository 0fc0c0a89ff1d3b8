"""mount(2) and prctl(2) by the C library: a `mount` program is out of reach after the change of root."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT, BIND, RECURSIVE = 1, 2, 4, 8, 32, 4096, 16384

_SET_SECUREBITS, _NOROOT_LOCKED = 28, 0b11

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path | str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount. Raises `OSError`."""
    arguments = (os.fsencode(source), os.fsencode(target), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None)
    if _libc.mount(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def bind(source: Path | str, target: Path | str, *, read_only: bool = False) -> None:
    """Show `source` at `target` too. Raises `OSError`."""
    mount(str(source), target, flags=BIND | RECURSIVE)
    if read_only:
        kept = os.statvfs(target).f_flag & (NO_SUID | NO_DEVICES | NO_EXEC)  # in a user namespace, flags of the host's mount are locked
        mount("", target, flags=BIND | REMOUNT | READ_ONLY | kept)


def give_programs_no_capabilities() -> None:
    """From now on, a program that this process starts has no capabilities, even as user 0; the process itself keeps its own. Raises `OSError`."""
    if _libc.prctl(_SET_SECUREBITS, ctypes.c_ulong(_NOROOT_LOCKED), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl(PR_SET_SECUREBITS)")
