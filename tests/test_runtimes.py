"""Runners and runtime libraries for a device: built once, found, installed or refused, and what to do then."""

from __future__ import annotations

import platform
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from edgekit import native_build, runtimes
from edgekit.errors import EdgekitError, MissingPackageError, UsageError
from tests import jobs
from tests.runner_models import TWINS, twin_samples, twins_onnx

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="the native runner needs a C compiler")


@pytest.mark.parametrize(
    ("said", "release"),
    [("2.1 (LiteRT C)", (2, 1, 0)), ("1.24.3+cpu", (1, 24, 3)), ("unknown", ()), ("", ()), ("7" * 10_000, (777_777_777, 0, 0))],
)
def test_the_numbers_of_whatever_a_device_calls_its_version(said: str, release: tuple[int, ...]) -> None:
    assert runtimes.release(said) == release


def test_a_runner_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEKIT_CACHE", str(tmp_path))
    first = runtimes.runner(jobs.HERE)
    stamp = first.stat().st_mtime_ns
    assert runtimes.runner(jobs.HERE) == first and first.stat().st_mtime_ns == stamp
    assert [path.name for path in first.parent.iterdir() if path.name.startswith("tmp")] == []
    with pytest.raises(UsageError, match="windows-x64"):
        runtimes.runner("windows-x64")


def test_without_a_compiler_one_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEKIT_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    if native_build.find_zig():
        pytest.skip("ziglang is installed here")
    with pytest.raises(MissingPackageError) as caught:
        runtimes.runner("android-arm64-v8a")
    assert caught.value.hint == "pip install ziglang"


def test_a_runner_that_does_not_compile_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/main.c").write_text("int main(void) { return nothing; }\n")
    with pytest.raises(EdgekitError, match="nothing"):
        native_build.build(tmp_path / "broken", jobs.HERE, tmp_path)


def test_libraries_are_found_given_or_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEKIT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(MissingPackageError) as caught:
        runtimes.library("litert", "linux-riscv64")
    assert "--runtime" in (caught.value.hint or "")
    if platform.machine() == "x86_64":
        with pytest.raises(MissingPackageError) as caught:
            runtimes.library("litert", "linux-aarch64")
        assert caught.value.hint == "edgekit tools install runtime:litert-linux-aarch64"
        with pytest.raises(UsageError, match="not a shared library for linux-aarch64"):
            runtimes.library("litert", "linux-aarch64", jobs.library("litert"))
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + (3).to_bytes(2, "little") + (183).to_bytes(2, "little")
    with zipfile.ZipFile(tmp_path / "litert.aar", "w") as archive:
        archive.writestr("jni/x86_64/libLiteRt.so", header.replace(b"\xb7", b"\x3e"))
        archive.writestr("jni/arm64-v8a/libLiteRt.so", header)
    found = runtimes.library("litert", "android-arm64-v8a", tmp_path / "litert.aar")
    assert found.name == "libLiteRt.so" and found.read_bytes() == header
    with pytest.raises(UsageError, match="holds no library"):
        runtimes.library("onnxruntime", "android-arm64-v8a", tmp_path / "litert.aar")
    data = bytearray((tmp_path / "litert.aar").read_bytes())
    data[data.rindex(header) + 10] ^= 1
    (tmp_path / "damaged.aar").write_bytes(data)
    with pytest.raises(UsageError, match="damaged or not readable"):
        runtimes.library("litert", "android-arm64-v8a", tmp_path / "damaged.aar")


def test_a_pinned_wheel_with_other_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is a folder that serves another file under the pinned name."""
    wheel = runtimes.INSTALLABLE["litert", "linux-aarch64"]
    file = tmp_path / "index" / f"{wheel.package.replace('-', '_')}-{wheel.version}-cp311-cp311-{wheel.tags[0]}.whl"
    file.parent.mkdir()
    info = f"{wheel.package.replace('-', '_')}-{wheel.version}.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {wheel.package}\nVersion: {wheel.version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr(f"{info}/RECORD", "")
    for name, value in {
        "EDGEKIT_CACHE": str(tmp_path / "cache"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(file.parent),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MissingPackageError, match="is pinned"):
        runtimes.install("litert", "linux-aarch64")
    assert not list((tmp_path / "cache").rglob("*.so"))


@pytest.mark.slow
@pytest.mark.parametrize(("platform_name", "machine"), [("android-arm64-v8a", 183), ("android-x86_64", 62)])
def test_android_build_without_the_ndk(platform_name: str, machine: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position-independent program for Android's loader that asks for nothing but its libc and libdl."""
    if not native_build.find_zig():
        pytest.skip("needs zig (pip install ziglang)")
    monkeypatch.setenv("EDGEKIT_CACHE", str(tmp_path))
    data = runtimes.runner(platform_name).read_bytes()
    assert data[:4] == b"\x7fELF" and int.from_bytes(data[16:18], "little") == 3 and int.from_bytes(data[18:20], "little") == machine
    assert b"/system/bin/linker64\0" in data and b"libc.so\0" in data and b"libdl.so\0" in data
    assert b"libm.so" not in data and b"libc++" not in data


@pytest.mark.slow
def test_cmake_builds_the_same_program(tmp_path: Path) -> None:
    if not shutil.which("cmake"):
        pytest.skip("needs cmake")
    subprocess.run(["cmake", "-S", str(native_build.sources()), "-B", str(tmp_path)], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(tmp_path)], check=True, capture_output=True)
    jobs.write(tmp_path / "job", twins_onnx(tmp_path), twin_samples(1), TWINS, library=jobs.library("onnxruntime"))
    code, result = jobs.execute([str(tmp_path / "runner")], tmp_path / "job", tmp_path / "out")
    assert (code, result.error) == (0, "")
