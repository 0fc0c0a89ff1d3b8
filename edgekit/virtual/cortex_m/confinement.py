"""What keeps firmware from this machine: it comes from bundles, and semihosting gives it the files and the shell of whoever runs the emulator."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

_SANDBOX = ("-sandbox", "on,spawn=deny,elevateprivileges=deny,resourcecontrol=deny")


def words(emulator: str, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words before the emulator's command, and options of it: it may start no program, and sees `folder` as its root.

    The first needs a QEMU with seccomp, the second root or user namespaces; what is not to be had here is left out.
    """
    described, before = _help(emulator), _as_root()
    sandbox = _SANDBOX if "-sandbox" in described else ()
    if before is None:
        return (), sandbox
    root = ("-chroot", str(folder)) if "-chroot" in described else ("-run-with", f"chroot={folder}") if "chroot=" in described else ()
    return before, (*sandbox, *root)


@functools.cache
def _help(emulator: str) -> str:
    return subprocess.run([emulator, "-help"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL).stdout


@functools.cache
def _as_root() -> tuple[str, ...] | None:
    """The words before a command that may change its root folder; None where nobody here may."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return ()
    namespace = ("unshare", "--user", "--map-root-user")
    if shutil.which(namespace[0]) is None or subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        return None
    return namespace
