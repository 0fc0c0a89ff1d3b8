"""Build the native runner: choose a compiler, compile a dozen C files.

`zig` (PyPI: ziglang) serves every platform, Android without its NDK included, and links Linux runners against an old glibc, so that they start
on old boards too. A system compiler is taken first where its result is as good: for this machine itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform as machine
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from edgekit import resources
from edgekit.errors import EdgekitError, MissingPackageError, UsageError

PLATFORMS = {
    "linux-x86_64": "x86_64-linux-gnu.2.28",
    "linux-aarch64": "aarch64-linux-gnu.2.28",
    "android-arm64-v8a": "aarch64-linux-android",
    "android-x86_64": "x86_64-linux-android",
}
"""Platform -> zig's name for it."""

_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror")
_CROSS = {"linux-aarch64": "aarch64-linux-gnu-gcc"}
_NDK_TRIPLES = {"android-arm64-v8a": "aarch64-linux-android24", "android-x86_64": "x86_64-linux-android24"}


def sources() -> Path:
    """The folder of the runner's C sources."""
    return resources.directory("apps") / "runner"


def digest(folder: Path) -> str:
    """SHA-256 over names and contents of the sources: the same sources build the same runner."""
    state = hashlib.sha256(" ".join(_FLAGS).encode())
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".c", ".h", ".txt")):
        state.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return state.hexdigest()


def build(folder: Path, platform: str, scratch: Path) -> Path:
    """Build the runner from the sources in `folder` into `scratch`.

    Raises `MissingPackageError` when no compiler serves the platform, `UsageError` for an unknown platform, `EdgekitError` when it does not compile.
    """
    if platform not in PLATFORMS:
        raise UsageError(f"the runner cannot be built for {platform!r}", f"known: {', '.join(PLATFORMS)}")
    out = scratch / "runner"
    files = [str(path) for path in sorted(folder.glob("*.c"))]
    system = _system_compiler(platform)
    zig = find_zig()
    if system and (not zig or platform not in _CROSS):
        _run([*system, *_FLAGS, *files, "-o", str(out), "-ldl"])
    elif zig and platform.startswith("android-"):
        _build_without_ndk(zig, folder, platform, files, scratch, out)
    elif zig:
        _run([*zig, "cc", "-target", PLATFORMS[platform], *_FLAGS, "-s", *files, "-o", str(out), "-ldl"], scratch)
    else:
        raise MissingPackageError(f"no C compiler for {platform} was found", "pip install ziglang")
    return out


def find_zig() -> list[str]:
    """The command that starts zig: the package ziglang, or a zig on PATH; empty when there is none."""
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang"]
    found = shutil.which("zig")
    return [found] if found else []


def _system_compiler(platform: str) -> list[str]:
    if platform in _NDK_TRIPLES:
        return _ndk_compiler(_NDK_TRIPLES[platform])
    names = ("cc", "gcc", "clang") if platform == f"{sys.platform}-{machine.machine()}" else (_CROSS.get(platform, ""),)
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    return [found] if found else []


def _ndk_compiler(triple: str) -> list[str]:
    roots = [os.environ.get(name) for name in ("ANDROID_NDK_HOME", "ANDROID_NDK_ROOT", "ANDROID_NDK")]
    sdk = os.environ.get("ANDROID_HOME") or os.environ.get("ANDROID_SDK_ROOT")
    if sdk:
        roots += [str(path) for path in sorted(Path(sdk, "ndk").glob("*"), reverse=True)]
    for root in roots:
        found = sorted(Path(root).glob(f"toolchains/llvm/prebuilt/*/bin/{triple}-clang")) if root else []
        if found:
            return [str(found[0]), "-Wl,-z,max-page-size=16384"]
    return []


def _build_without_ndk(zig: list[str], folder: Path, platform: str, files: Sequence[str], scratch: Path, out: Path) -> None:
    """Compile against musl's headers, and link to libraries that only name the functions of Android's own libc.

    The two C libraries agree in the types used on 64-bit processors; `android/start.c` provides the entry point and what differs.
    """
    arch = "aarch64" if "arm64" in platform else "x86_64"
    stubs = [f"-L{scratch}", "-lc", "-ldl"]
    for name in ("libc", "libdl"):
        listed = (folder / "android" / f"{name}.txt").read_text("ascii").split()
        stub = scratch / f"{name}.c"
        stub.write_text("".join(f"void {symbol}(void) {{}}\n" for symbol in listed), "ascii")
        flags = ["-target", PLATFORMS[platform], "-nostdlib", "-nostdinc", "-fno-builtin", "-fno-sanitize=all", "-fPIC", "-shared", "-w"]
        _run([*zig, "cc", *flags, f"-Wl,-soname,{name}.so", str(stub), "-o", str(scratch / f"{name}.so")], scratch)
    objects = []
    for file in (*files, str(folder / "android" / "start.c")):
        objects.append(str(scratch / f"{Path(file).stem}.o"))
        strict = ["-fno-builtin", "-fno-stack-protector", "-fno-sanitize=all", "-U_FORTIFY_SOURCE", "-D__ANDROID__"]
        _run([*zig, "cc", "-target", f"{arch}-linux-musl", *_FLAGS, *strict, "-c", file, "-o", objects[-1]], scratch)
    # lld itself: the driver refuses to link for Android without its C library. 16 KiB pages as recent devices have them
    layout = ["-pie", "-s", "-z", "now", "-z", "max-page-size=16384", "--hash-style=both", "-dynamic-linker", "/system/bin/linker64"]
    _run([*zig, "ld.lld", *layout, *objects, *stubs, "-o", str(out)], scratch)


def _run(command: Sequence[str], scratch: Path | None = None) -> None:
    environment = dict(os.environ)
    if scratch is not None:
        environment.setdefault("ZIG_GLOBAL_CACHE_DIR", str(Path(scratch).parent.parent / "zig"))
        environment.setdefault("ZIG_LOCAL_CACHE_DIR", str(scratch / "zig"))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise EdgekitError(
            f"the runner could not be built: {' '.join(command[:3])} ... said: {done.stderr.strip()[:2000]}", "is the compiler complete?"
        )
