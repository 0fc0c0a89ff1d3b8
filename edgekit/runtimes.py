"""What a native device needs beside the bundle: the runner, built here on demand, and the runtime's shared library.

Nothing is downloaded but by `install`. Built runners and installed libraries live in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import platform as machine
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

import filelock
import msgspec

from edgekit import native_build, places
from edgekit.budget import binaries
from edgekit.budget.binaries import MACHINES
from edgekit.errors import MissingPackageError, UsageError


class Wheel(msgspec.Struct, frozen=True):
    """A pinned wheel that carries a runtime's shared library, and where it lies in there (a pattern over the entries' names)."""

    package: str
    version: str
    tags: tuple[str, ...]
    sha256: str
    member: str


_LITERT = "ai_edge_litert/libLiteRt.so"
_ORT = r"onnxruntime/capi/libonnxruntime\.so\.[0-9.]+"
_ARM_TAGS = ("manylinux_2_27_aarch64", "manylinux_2_28_aarch64")
_X86_TAGS = ("manylinux_2_27_x86_64", "manylinux_2_28_x86_64")

INSTALLABLE: dict[tuple[str, str], Wheel] = {
    ("litert", "linux-aarch64"): Wheel(
        "ai-edge-litert", "2.1.0", _ARM_TAGS, "92b24d2507fccf5680c26e712c156266dcf64a892df3921dd42f4a7d26527462", _LITERT
    ),
    ("litert", "linux-x86_64"): Wheel(
        "ai-edge-litert", "2.3.0", _X86_TAGS, "1f15078a6725d2357d9de9221664c29afa0545d807559c5f7199ce5e40b96b23", _LITERT
    ),
    ("onnxruntime", "linux-aarch64"): Wheel(
        "onnxruntime", "1.24.2", _ARM_TAGS, "670d7e671af2dbd17638472f9b9ff98041889efd7150718406b9ea989312d064", _ORT
    ),
    ("onnxruntime", "linux-x86_64"): Wheel(
        "onnxruntime", "1.32.0", _X86_TAGS, "5a34fc4dfeb5a7b4a74c95dcba1e773d722abda720b474edf1b0c419dc6d163d", _ORT
    ),
}
"""Runtime and platform -> the wheel that `install` takes the library from."""

_ABIS = {"android-arm64-v8a": "arm64-v8a", "android-x86_64": "x86_64", "android-armeabi-v7a": "armeabi-v7a"}
_ANDROID_SOURCE = {
    "litert": "the AAR com.google.ai.edge.litert:litert of Google's Maven repository",
    "onnxruntime": "the AAR com.microsoft.onnxruntime:onnxruntime-android of Maven Central",
}
_NAMES = {"litert": ("libLiteRt.so", "libtensorflowlite_c.so", "libtensorflowlite_jni.so"), "onnxruntime": ("libonnxruntime.so",)}


ON_BOARD = {"dpu": "vitisai"}
"""Runtimes that a board has in its own Python (its image brings them, no wheel does) -> the accelerator that is its chip."""

_PYTHON_RUNNER = """#!/bin/sh
# The board's own Python holds the runtime, and edgekit beside it executes the job.
exec "${EDGEKIT_PYTHON:-python3}" -m edgekit.hostrun "$@"
"""


def write_python_runner(path: Path) -> None:
    """The runner of a board whose Python (`$EDGEKIT_PYTHON` there, or `python3`) has both the runtime and edgekit."""
    path.write_text(_PYTHON_RUNNER, encoding="utf-8")
    path.chmod(0o755)


def runner(platform: str) -> Path:
    """The native runner for `linux-x86_64`, `linux-aarch64`, `android-arm64-v8a` or the like.

    One that came with edgekit is taken; else it is built once per version of its sources (a second or two), with the compiler found first.
    Raises `MissingPackageError` naming the command that brings a compiler, `UsageError` for a platform it cannot be built for.
    """
    folder = native_build.sources()
    shipped = folder / "prebuilt" / platform / "runner"
    if shipped.is_file():
        return shipped
    built = places.cache() / "runners" / f"{platform}-{native_build.digest(folder)[:16]}" / "runner"
    if built.is_file():
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(built.with_suffix(".lock")):
        if not built.is_file():
            _build(folder, platform, built)
    return built


def _build(folder: Path, platform: str, built: Path) -> None:
    with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
        made = native_build.build(folder, platform, Path(scratch))
        made.chmod(0o755)
        made.replace(built)


def library(runtime: str, platform: str, given: Path | None = None) -> Path:
    """The runtime's shared library for a platform: `given` (a `.so`, or a wheel or AAR that holds it), the installed one, or this machine's package.

    Raises `MissingPackageError` naming the command that installs it, `UsageError` when `given` is not such a library.
    """
    if given is not None:
        return _given(runtime, platform, given)
    for found in (_installed(runtime, platform), _from_package(runtime, platform)):
        if found is not None:
            return found
    raise MissingPackageError(f"there is no {runtime} library for {platform} here", _how_to_get(runtime, platform))


def version(runtime: str, platform: str) -> str:
    """The pinned version for a platform, or empty where none is."""
    wheel = INSTALLABLE.get((runtime, platform))
    return wheel.version if wheel else ""


def release(text: str) -> tuple[int, ...]:
    """The three numbers that a version begins with: `2.1 (LiteRT C)` is (2, 1, 0); empty where it begins with none."""
    found = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9})*", text)
    return (*map(int, found[0].split(".")), 0, 0)[:3] if found else ()


def install(runtime: str, platform: str) -> Path:
    """Download the pinned wheel, check its hash, and keep only the library; one that is there already is kept.

    Raises `MissingPackageError` when the download fails or brings other bytes, `UsageError` for what cannot be installed.
    """
    wheel = INSTALLABLE.get((runtime, platform))
    if wheel is None:
        raise UsageError(f"there is no {runtime} library to install for {platform}", _how_to_get(runtime, platform))
    found = _installed(runtime, platform)
    if found is not None:
        return found
    folder = _folder(runtime, platform, wheel)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        downloaded = _download(wheel, Path(scratch))
        staged = Path(scratch, "library")
        staged.mkdir()
        _check_machine(_unpack(downloaded, wheel.member, staged), platform)
        shutil.rmtree(folder, ignore_errors=True)
        staged.replace(folder)
    return next(folder.iterdir())


def _folder(runtime: str, platform: str, wheel: Wheel) -> Path:
    return places.cache() / "runtimes" / f"{runtime}-{platform}-{wheel.version}"


def _installed(runtime: str, platform: str) -> Path | None:
    wheel = INSTALLABLE.get((runtime, platform))
    folder = _folder(runtime, platform, wheel) if wheel else None
    return next(folder.glob("lib*.so*"), None) if folder else None


def _from_package(runtime: str, platform: str) -> Path | None:
    """The library inside the installed Python package, when the platform is this machine's."""
    wheel = INSTALLABLE.get((runtime, platform))
    if wheel is None or platform != f"{sys.platform}-{machine.machine()}":
        return None
    try:
        files = metadata.files(wheel.package) or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if re.fullmatch(wheel.member, str(file))), None)


def _download(wheel: Wheel, folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
    ]
    command += ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"]
    command += [word for tag in wheel.tags for word in ("--platform", tag)]
    done = subprocess.run([*command, f"{wheel.package}=={wheel.version}"], capture_output=True, text=True, check=False)
    found = next(folder.glob("*.whl"), None)
    if done.returncode != 0 or found is None:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise MissingPackageError(
            f"{wheel.package} {wheel.version} could not be downloaded: {reason}", "is pip there, and the package index within reach?"
        )
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    if digest != wheel.sha256:
        raise MissingPackageError(
            f"{found.name} has the hash {digest}, but {wheel.sha256} is pinned", "the index serves another file under this name"
        )
    return found


def _given(runtime: str, platform: str, given: Path) -> Path:
    if not given.is_file():
        raise UsageError(f"{given}: no such runtime library", _how_to_get(runtime, platform))
    if zipfile.is_zipfile(given):
        given = _from_archive(runtime, platform, given)
    _check_machine(given, platform)
    return given


def _from_archive(runtime: str, platform: str, archive: Path) -> Path:
    """The library inside a wheel or an AAR, unpacked into the cache by the archive's hash."""
    folder = places.cache() / "given" / f"{runtime}-{platform}-{hashlib.sha256(archive.read_bytes()).hexdigest()[:16]}"
    found = next(folder.glob("lib*.so*"), None)
    if found is not None:
        return found
    names = "|".join(re.escape(name) for name in _NAMES.get(runtime, ()))
    inside = f"jni/{_ABIS[platform]}" if platform in _ABIS else "[A-Za-z0-9_/]+"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        staged = Path(scratch, "library")
        staged.mkdir()
        _unpack(archive, rf"{inside}/({names})(\.[0-9.]+)?", staged)
        staged.replace(folder)
    return next(folder.iterdir())


def _unpack(archive: Path, member: str, folder: Path) -> Path:
    with binaries.archive_of(archive) as opened:
        entry = next((info for info in opened.infolist() if re.fullmatch(member, info.filename)), None)
        if entry is None:
            raise UsageError(f"{archive.name} holds no library {member}", "give the wheel or AAR of the runtime that the target names")
        unpacked = folder / Path(entry.filename).name
        unpacked.write_bytes(binaries.read_entry(opened, entry, archive))
    return unpacked


def _check_machine(path: Path, platform: str) -> None:
    """Raises `UsageError` unless `path` is a shared library for the platform's processor."""
    with path.open("rb") as file:
        head = file.read(20)
    wanted = MACHINES.get(platform.partition("-")[2])
    if head[:4] != b"\x7fELF" or (wanted is not None and int.from_bytes(head[18:20], "little") != wanted):
        raise UsageError(f"{path.name} is not a shared library for {platform}", "give the library that was built for the device's processor")


def _how_to_get(runtime: str, platform: str) -> str:
    if (runtime, platform) in INSTALLABLE:
        return f"edgekit tools install runtime:{runtime}-{platform}"
    if platform.startswith("android-") and runtime in _ANDROID_SOURCE:
        return f"give {_ANDROID_SOURCE[runtime]} with --runtime FILE.aar"
    return f"give a library built for {platform} with --runtime FILE.so"
