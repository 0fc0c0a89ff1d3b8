"""The arm64 userland of the virtual device: fetched once with apt, unpacked with dpkg, kept in the user's cache."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from edgekit import places
from edgekit.errors import DeviceError, MissingPackageError
from edgekit.virtual.android import binfmt

INSTALL_COMMAND = "edgekit devices install virtual:android-arm64"
SYSTEM_COMMAND = "apt-get update && apt-get install -y"

_VERSION = "1"  # of the layout below; another one is installed anew
_PACKAGES = ("busybox-static", "mksh", "libc6", "libstdc++6", "libgcc-s1")
_LIBRARIES = "usr/lib/aarch64-linux-gnu"
_UNUSED = ("bin", "etc", "usr/bin", "usr/sbin", "usr/share", f"{_LIBRARIES}/gconv", "usr/lib/klibc", "usr/lib/diet", "usr/lib/aarch64-linux-musl")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PROGRAMS = {
    "apt-get": "apt",
    "dpkg": "dpkg",
    "unshare": "util-linux",
    binfmt.PROGRAM: "qemu-user-static",
}

_GETPROP = """#!/system/bin/sh
if [ -z "$1" ]; then
  while IFS='=' read -r key value; do echo "[$key]: [$value]"; done < /dev/__properties__
else
  while IFS='=' read -r key value; do [ "$key" = "$1" ] && { echo "$value"; exit 0; }; done < /dev/__properties__
  echo "$2"
fi
"""
_SETPROP = """#!/system/bin/sh
[ $# -eq 2 ] || { echo "usage: setprop NAME VALUE" >&2; exit 1; }
{ while IFS='=' read -r key value; do [ "$key" = "$1" ] || echo "$key=$value"; done < /dev/__properties__; echo "$1=$2"; } > /dev/__properties__.new
mv /dev/__properties__.new /dev/__properties__
"""


def folder() -> Path:
    """Where the userland is, or will be."""
    return places.cache() / "virtual-android" / f"rootfs-{_VERSION}"


def installed() -> bool:
    """Whether `install` has been done."""
    return (folder() / "system/bin/sh").is_symlink()


def missing() -> tuple[str, ...]:
    """What a virtual device lacks on this machine, one line each, with the command that installs it; empty when nothing is."""
    programs = {name: package for name, package in _PROGRAMS.items() if shutil.which(name) is None and (name != binfmt.PROGRAM or binfmt.needed())}
    lacks = []
    if programs:
        packages = sorted({*programs.values()})
        lacks.append(f"{', '.join(sorted(programs))}: {SYSTEM_COMMAND} {' '.join(packages)}")
    if not installed():
        lacks.append(f"the arm64 userland: {INSTALL_COMMAND}")
    return tuple(lacks)


def install() -> Path:
    """Download five Debian arm64 packages (about 12 MB with apt's index) and unpack them; nothing when that was done before.

    The host's apt and dpkg stay as they are. Raises `MissingPackageError` without apt or dpkg, `DeviceError` when apt fails.
    """
    target = folder()
    if installed():
        return target
    lacks = [line for line in missing() if not line.startswith("the arm64 userland")]
    if lacks:
        raise MissingPackageError(f"cannot install the arm64 userland without {lacks[0].split(':')[0]}", lacks[0].partition(": ")[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".install-") as scratch:
        packages = _fetch(Path(scratch))
        root = Path(scratch) / "root"
        _unpack(packages, root)
        _dress(root)
        with contextlib.suppress(OSError):  # another process was faster
            root.rename(target)
    if not installed():
        raise DeviceError(f"the arm64 userland could not be put into {target}", "is the folder writable?", reason="install")
    return target


def _fetch(scratch: Path) -> list[Path]:
    for name in ("lists/partial", "cache/archives/partial", "debs"):
        (scratch / name).mkdir(parents=True)
    (scratch / "status").touch()
    site, suite = _source()
    (scratch / "sources.list").write_text(f"deb [arch=arm64 signed-by={_KEYRING}] {site} {suite} main\n")
    apt = ["apt-get", "-qq", *_apt_options(scratch)]
    _run([*apt, "update"], scratch)
    _run([*apt, "download", *_PACKAGES], scratch / "debs")
    return sorted((scratch / "debs").glob("*.deb"))


def _source() -> tuple[str, str]:
    """The site and suite that this machine's own apt uses for Debian, so that mirrors and proxies are respected.

    Raises `MissingPackageError` where apt knows no Debian archive.
    """
    for only in (("Origin: Debian",), ()):  # an archive's origin is known only after an update
        for site, suite in _targets(only):
            debian = only or site.rstrip("/").endswith("/debian")
            if debian and not any(word in suite for word in ("security", "updates", "backports")):
                return site, suite
    raise MissingPackageError("apt on this machine knows no Debian archive to take the arm64 userland from", "add one to /etc/apt/sources.list.d")


def _targets(only: tuple[str, ...]) -> list[tuple[str, str]]:
    command = ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Component: main", *only]
    listing = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = (row.partition(" ") for row in listing.stdout.splitlines())
    return [(site, suite) for site, _, suite in rows if suite]


def _apt_options(scratch: Path) -> Iterator[str]:
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Dir::Cache": scratch / "cache",
        "Dir::Etc::sourcelist": scratch / "sources.list",
        "Dir::Etc::sourceparts": os.devnull,
        "Dir::State::lists": scratch / "lists",
        "Dir::State::status": scratch / "status",
    }
    for name, value in options.items():
        yield from ("-o", f"{name}={value}")


def _unpack(packages: list[Path], root: Path) -> None:
    root.mkdir()
    for package in packages:
        _run(["dpkg", "-x", str(package), str(root)], root)


def _dress(root: Path) -> None:
    """Make the tree look like Android's: tools and shell in /system/bin. The shell is mksh, as on phones."""
    system = root / "system/bin"
    system.mkdir(parents=True)
    for name, packaged in (("mksh", "mksh-static"), ("busybox", "busybox")):
        shutil.copy(_program(root, packaged), system / name)
    for name in _UNUSED:
        shutil.rmtree(root / name, ignore_errors=True)
    if not (root / "lib").exists():
        (root / "lib").symlink_to("usr/lib")
    (root / "bin").symlink_to("system/bin")
    for applet in _applets(system / "busybox"):
        (system / applet).symlink_to("busybox")
    for name, script in (("getprop", _GETPROP), ("setprop", _SETPROP)):
        (system / name).write_text(script)
        (system / name).chmod(0o755)
    (system / "sh").unlink()
    (system / "sh").symlink_to("mksh")


def _program(root: Path, name: str) -> Path:
    """The packaged program; an absolute symbolic link is followed within `root`."""
    path = next(path for path in (root / "bin" / name, root / "usr/bin" / name) if path.is_symlink() or path.exists())
    while path.is_symlink():
        path = root / str(path.parent.relative_to(root) / path.readlink()).lstrip("/")
    return path


def _applets(busybox: Path) -> list[str]:
    command = [binfmt.interpreter(), str(busybox)] if binfmt.needed() else [str(busybox)]
    listing = _run([*command, "--list"], busybox.parent)
    return [name for name in listing.split() if name != "busybox"]


def _run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[-400:]
        raise DeviceError(f"{command[0]} failed with code {done.returncode}: {said}", "is the Debian mirror reachable?", reason="install")
    return done.stdout
