"""The native runner, built here: its values against the Python runtimes and numpy, its reader against Python's under a sanitizer."""

from __future__ import annotations

import json
import math
import platform
import random
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import __version__, native_build, runtimes
from edgekit import job as contract
from edgekit.errors import EdgekitError, MissingPackageError, UsageError
from edgekit.job import Delegation
from edgekit.tensors import TensorSpec
from tests import jobs, tiny
from tests.test_hostrun import TWINS, half_delegated, twin_samples, twins_onnx, twins_tflite

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="the native runner needs a C compiler")

RNG = np.random.default_rng(11)


def test_version_is_the_package_s() -> None:
    assert f'#define RUNNER_VERSION "{__version__}"' in (native_build.sources() / "runner.h").read_text("ascii")


def values(dtype: str, shape: tuple[int, ...]) -> Any:
    """Values over the whole range of a dtype."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return RNG.normal(size=shape).astype(kind)
    if kind.kind == "b":
        return RNG.integers(0, 2, shape).astype(bool)
    limits = np.iinfo(kind)
    return RNG.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)


LITERT_DTYPES = ("float32", "float16", "int8", "uint8", "int16", "int32", "int64", "bool")
ONNX_DTYPES = (*LITERT_DTYPES, "uint16", "uint32", "uint64", "float64")
DTYPES = [("litert", dtype) for dtype in LITERT_DTYPES] + [("onnxruntime", dtype) for dtype in ONNX_DTYPES]


@pytest.mark.parametrize(("runtime", "dtype"), DTYPES)
def test_every_dtype_passes_through_in_both_executors(runtime: str, dtype: str, tmp_path: Path) -> None:
    """A transpose (float16 in LiteRT: a reshape, which is what it has) of two inputs: bytes must come back in their place, for every sample."""
    moves = not (runtime == "litert" and dtype == "float16")
    shapes = {"p": ((2, 3), (3, 2)), "q": ((3, 2), (2, 3))}
    specs = {side: [(f"{side}{name}", dtype, shapes[name][i]) for name in shapes] for i, side in enumerate(("in_", "out_"))}
    if runtime == "litert":
        constants: dict[str, Any] = {f"axes_{name}": [1, 0] if moves else shapes[name][1] for name in shapes}
        tensors = [*specs["in_"], *specs["out_"], *[(name, "int32", (2,)) for name in constants]]
        nodes = [("TRANSPOSE" if moves else "RESHAPE", [f"in_{n}", f"axes_{n}"], [f"out_{n}"]) for n in ("q", "p")]
        model = tiny.write_tflite(tmp_path / "m.tflite", tensors, nodes, ["in_p", "in_q"], ["out_q", "out_p"], constants=constants, scale=0.5)
    else:
        nodes = [("Transpose", [f"in_{n}"], [f"out_{n}"]) for n in ("q", "p")]
        model = tiny.write_onnx(tmp_path / "m.onnx", specs["in_"], specs["out_"], nodes, perm=[1, 0])
    samples = [{f"in_{name}": values(dtype, shapes[name][0]) for name in shapes} for _ in range(3)]
    wanted = [TensorSpec(f"out_{name}", shapes[name][1], dtype) for name in shapes]
    jobs.write(tmp_path / "job", model, samples, wanted, library=jobs.library(runtime))
    for name, command in {"native": jobs.native(), "python": jobs.PYTHON}.items():
        _, result = jobs.execute(command, tmp_path / "job", tmp_path / name)
        assert result.error == ""
        for sample, got in zip(samples, jobs.outputs(tmp_path / name, result), strict=True):
            for key in shapes:
                source = sample[f"in_{key}"]
                np.testing.assert_array_equal(got[f"out_{key}"], source.T if moves else source.reshape(shapes[key][1]))
                assert got[f"out_{key}"].dtype == dtype


@pytest.mark.parametrize("runtime", ["litert", "onnxruntime"])
@pytest.mark.parametrize("accelerator", ["cpu", "xnnpack"])
def test_twins(runtime: str, accelerator: str, tmp_path: Path) -> None:
    """Outputs of one shape keep their names; everything measured is there."""
    if runtime == "onnxruntime" and accelerator == "xnnpack":
        pytest.skip("the Linux build of ONNX Runtime has no XNNPACK provider")
    samples = twin_samples()
    model = (twins_tflite if runtime == "litert" else twins_onnx)(tmp_path)
    fields = {"accelerator": accelerator, "min_runs": 20, "warmup_runs": 5, "threads": 2}
    jobs.write(tmp_path / "job", model, samples, TWINS, library=jobs.library(runtime), **fields)
    code, result = jobs.execute(jobs.native(), tmp_path / "job", tmp_path / "out")
    assert (code, result.status, result.error) == (0, "ok", "")
    for sample, got in zip(samples, jobs.outputs(tmp_path / "out", result), strict=True):
        np.testing.assert_array_equal(got["diff"], sample["x"] - sample["y"])
        np.testing.assert_array_equal(got["sum"], sample["x"] + sample["y"])
    assert len(result.latency_ns) == 20 and 3 <= len(result.warmup_ns) <= 5 and len(result.sample_ns) == 3
    assert result.load_cold_ns and result.load_warm_ns and result.library_ns
    assert result.peak_memory_bytes and 1_000_000 < result.peak_memory_bytes < 1_000_000_000
    assert result.delegation and result.delegation.total == 2 and result.delegation.nodes == (2 if accelerator == "xnnpack" else 0)


def test_part_of_a_model_delegated_is_not_called_whole(tmp_path: Path) -> None:
    """LiteRT's newer interface does not tell how much was taken; then the result says so and claims nothing."""
    sample = {"x": np.array([[1, 2, 3, 4]], "f")}
    wanted = [TensorSpec("y", (1, 4), "float32")]
    jobs.write(tmp_path / "job", half_delegated(tmp_path), [sample], wanted, library=jobs.library("litert"), accelerator="xnnpack")
    _, result = jobs.execute(jobs.native(), tmp_path / "job", tmp_path / "out")
    np.testing.assert_array_equal(jobs.outputs(tmp_path / "out", result)[0]["y"], [[16, 12, 8, 4]])
    assert result.delegation is None


@pytest.mark.parametrize("accelerator", ["cpu", "xnnpack"])
def test_int8_arithmetic_is_the_python_runtime_s(accelerator: str, tmp_path: Path) -> None:
    """With one scale for all, a quantized sum is the sum of the stored values, saturated."""
    specs = [(name, "int8", (1, 64)) for name in ("a", "b", "sum")]
    model = tiny.write_tflite(tmp_path / "m.tflite", specs, [("ADD", ["a", "b"], ["sum"])], ["a", "b"], ["sum"], scale=0.25)
    samples = [{name: values("int8", (1, 64)) for name in ("a", "b")} for _ in range(4)]
    wanted = [TensorSpec("sum", (1, 64), "int8")]
    jobs.write(tmp_path / "job", model, samples, wanted, library=jobs.library("litert"), accelerator=accelerator)
    for name, command in {"native": jobs.native(), "python": jobs.PYTHON}.items():
        _, result = jobs.execute(command, tmp_path / "job", tmp_path / name)
        for sample, got in zip(samples, jobs.outputs(tmp_path / name, result), strict=True):
            exact = np.clip(sample["a"].astype(int) + sample["b"], -128, 127)
            np.testing.assert_array_equal(got["sum"], exact)


@pytest.mark.parametrize("kind", ["tflite", "onnx"])
def test_an_open_dimension_takes_the_job_s(kind: str, tmp_path: Path) -> None:
    sample = {"x": np.arange(12, dtype="f").reshape(4, 3)}
    x, y = ("x", "float32", (-1, 3)), ("y", "float32", (-1, 3))
    if kind == "tflite":
        model = tiny.write_tflite(tmp_path / "m.tflite", [x, y], [("ADD", ["x", "x"], ["y"])], ["x"], ["y"])
    else:
        model = tiny.write_onnx(tmp_path / "m.onnx", [x], [y], [("Add", ["x", "x"], ["y"])])
    runtime = "litert" if kind == "tflite" else "onnxruntime"
    jobs.write(tmp_path / "job", model, [sample], [TensorSpec("y", (4, 3), "float32")], library=jobs.library(runtime))
    for name, command in {"native": jobs.native(), "python": jobs.PYTHON}.items():
        _, result = jobs.execute(command, tmp_path / "job", tmp_path / name)
        assert result.error == ""
        np.testing.assert_array_equal(jobs.outputs(tmp_path / name, result)[0]["y"], 2 * sample["x"])


CRASHES = {
    "segfault": ("void *OrtGetApiBase(void) { return *(void *volatile *)8; }", "SIGSEGV"),
    "abort": ("#include <stdlib.h>\nvoid *OrtGetApiBase(void) { abort(); }", "SIGABRT"),
    "exit": ("#include <stdlib.h>\nvoid *OrtGetApiBase(void) { exit(0); }", None),
    "no function": ("int nothing;", "OrtGetApiBase"),
}


@pytest.mark.parametrize("how", CRASHES)
def test_a_library_that_misbehaves_is_reported(how: str, tmp_path: Path) -> None:
    source, said = CRASHES[how]
    (tmp_path / "bad.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(tmp_path / "libbad.so"), str(tmp_path / "bad.c")], check=True)
    jobs.write(tmp_path / "job", twins_onnx(tmp_path), twin_samples(1), TWINS, library=tmp_path / "libbad.so")
    code, result = jobs.execute(jobs.native(), tmp_path / "job", tmp_path / "out")
    assert (code, result.stage, result.runtime) == (11, "library", "onnxruntime")
    assert said is None or said in result.error


def test_a_runtime_killed_for_memory_names_its_peak(tmp_path: Path) -> None:
    size = 200_000_000
    source = "#include <signal.h>\n#include <stdlib.h>\n#include <string.h>\nvoid *OrtGetApiBase(void) {"
    source += f" char *data = malloc({size}); memset(data, 1, {size}); raise(SIGKILL); return data; }}"
    (tmp_path / "bad.c").write_text(source)
    subprocess.run(["cc", "-O0", "-shared", "-fPIC", "-w", "-o", str(tmp_path / "libbad.so"), str(tmp_path / "bad.c")], check=True)
    jobs.write(tmp_path / "job", twins_onnx(tmp_path), twin_samples(1), TWINS, library=tmp_path / "libbad.so")
    code, result = jobs.execute(jobs.native(), tmp_path / "job", tmp_path / "out")
    assert (code, result.stage) == (11, "library")
    assert result.peak_memory_bytes and size < result.peak_memory_bytes < 1.5 * size
    assert "SIGKILL" in result.error and f"up to {result.peak_memory_bytes / 1e6:.0f} MB" in result.error


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "libtext.so").write_text("not ELF")
    jobs.write(tmp_path / "job", twins_onnx(tmp_path), twin_samples(1), TWINS, library=tmp_path / "libtext.so")
    code, result = jobs.execute(jobs.native(), tmp_path / "job", tmp_path / "out")
    assert (code, result.stage) == (11, "library") and "libtext.so" in result.error


def test_killing_the_runner_leaves_no_process(tmp_path: Path) -> None:
    """The lab kills a runner that takes too long; its child must not run on."""
    fields = {"min_runs": 1_000_000, "max_seconds": 60.0}
    jobs.write(tmp_path / "job", twins_onnx(tmp_path), twin_samples(1), TWINS, library=jobs.library("onnxruntime"), **fields)
    (tmp_path / "out").mkdir()
    with subprocess.Popen([*jobs.native(), str(tmp_path / "job"), str(tmp_path / "out")]) as process:
        for _ in range(400):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            if children and (tmp_path / "out/outputs/0-1.raw").exists():
                break
            subprocess.run(["sleep", "0.02"], check=True)
        process.kill()
    subprocess.run(["sleep", "0.2"], check=True)
    status = Path(f"/proc/{children[0]}/stat")
    assert not status.exists() or status.read_text().split(")")[1].split()[0] in "ZX"
    assert not (tmp_path / "out/result.json").exists()


@pytest.mark.parametrize("arguments", [[], ["/nowhere", "/nowhere"], ["a", "b", "c"]])
def test_usage(arguments: list[str]) -> None:
    done = subprocess.run([*jobs.native(), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "usage" in done.stderr


FUZZER = r"""
#include "json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void show(const struct json *v) {
  if (v->kind == JSON_NULL) printf("null");
  if (v->kind == JSON_BOOL) printf(v->truth ? "true" : "false");
  if (v->kind == JSON_NUMBER) printf("%.17g", v->number);
  if (v->kind == JSON_STRING) { printf("\""); for (const char *c = v->text; *c; c++) printf("%02x", (unsigned char)*c); printf("\""); }
  if (v->kind != JSON_ARRAY && v->kind != JSON_OBJECT) return;
  printf(v->kind == JSON_ARRAY ? "[" : "{");
  for (const struct json *c = v->child; c; c = c->next) {
    if (v->kind == JSON_OBJECT) { printf("\""); for (const char *k = c->key; *k; k++) printf("%02x", (unsigned char)*k); printf("\":"); }
    show(c);
    if (c->next) printf(",");
  }
  printf(v->kind == JSON_ARRAY ? "]" : "}");
}
int main(void) {
  unsigned char head[4];
  while (fread(head, 1, 4, stdin) == 4) {
    size_t n = head[0] | head[1] << 8 | head[2] << 16;
    char *text = malloc(n ? n : 1), error[64] = ""; /* exactly as long as the document: reading past it is seen */
    if (fread(text, 1, n, stdin) != n) return 1;
    struct json *value = json_parse(text, n, error, sizeof error);
    if (value) show(value); else printf("!%s", error);
    printf("\n");
    json_free(value);
    free(text);
  }
  return 0;
}
"""

SEEDS = [
    b'{"runtime": "litert", "samples": [[{"name": "x", "shape": [1, 224, 3], "file": "inputs/0.raw"}]], "max_seconds": 5.0, "a": null}',
    '{"käse": "\\u00e9\\ud83d\\ude00 \\" \\\\ \\/ \\b\\f\\n\\r\\t", "é": [true, false, null, -0.5e-3, 1E+2, 9007199254740993]}'.encode(),
    b"[" * 33 + b"]" * 33,
    b"[" * 32 + b"]" * 32,
    b'{"a":1,"a":2}',
    b'["\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80"]',
    b'"\\u0000"',
    b"-",
    b"01",
    b"1.",
    b"1e",
    b'"\\',
    b'"\\u12',
    b"nul",
    b"[1,]",
    b'{"a" 1}',
    b"",
    b"1" * 100,
]


def _mutants(count: int) -> list[bytes]:
    rng = random.Random(3)
    made = list(SEEDS)
    for _ in range(count):
        data = bytearray(rng.choice(SEEDS[:3]))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            choice = rng.randrange(4)
            if choice == 0:
                data[at:at] = rng.choice(
                    [b'"', b"\\", b"{", b"[", b"]", b"}", b",", b":", b"\\u", b"\xff", b"\xe2\x82", b"0", b"e", b"-", b"\x00", b"\n"]
                )
            elif choice == 1:
                del data[at : at + rng.randint(1, 8)]
            elif choice == 2 and at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            else:
                data = data[:at] or data
        made.append(bytes(data))
    return made


def _hex(value: Any) -> Any:
    """A document as the C program shows it: texts in hexadecimal."""
    if isinstance(value, str):
        return value.encode().hex()
    if isinstance(value, list):
        return [_hex(x) for x in value]
    return {_hex(k): _hex(x) for k, x in value.items()} if isinstance(value, dict) else value


def test_the_json_reader_survives_and_agrees_with_python(tmp_path: Path) -> None:
    """No memory error in 4000 damaged documents (AddressSanitizer, UBSan); what it accepts, Python reads alike."""
    (tmp_path / "fuzz.c").write_text(FUZZER)
    sources = native_build.sources()
    flags = ["-std=c11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{sources}"]
    built = subprocess.run(
        ["cc", *flags, str(tmp_path / "fuzz.c"), str(sources / "json.c"), "-o", str(tmp_path / "fuzz")], capture_output=True, check=False
    )
    if b"asan" in built.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert built.returncode == 0, built.stderr.decode()
    documents = _mutants(4000)
    stream = b"".join(struct.pack("<I", len(x)) + x for x in documents)
    done = subprocess.run([str(tmp_path / "fuzz")], input=stream, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[:2000]
    lines = done.stdout.decode().split("\n")[:-1]
    assert len(lines) == len(documents)
    accepted = 0
    for document, line in zip(documents, lines, strict=True):
        if line.startswith("!"):
            continue
        accepted += 1
        expected = json.loads(document.decode("utf-8"), parse_int=float)
        assert json.loads(line, parse_int=float) == _hex(expected), document
    refused = {document for document, line in zip(documents, lines, strict=True) if line.startswith("!")}
    assert set(SEEDS[4:]) <= refused and SEEDS[2] in refused
    assert not {SEEDS[0], SEEDS[1], SEEDS[3]} & refused
    assert 200 < accepted < 3500


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
    import zipfile

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


def test_a_pinned_wheel_with_other_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is a folder that serves another file under the pinned name."""
    import zipfile

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


EMULATOR = shutil.which("qemu-aarch64-static")
ARM_CPUINFO = "".join(
    f"processor\t: {i}\nFeatures\t: fp asimd crc32 atomics\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0b\n\n" for i in range(2)
)


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the 64-bit Arm build here, under qemu with the libraries of Debian's cross compiler.

    A processor is named: with all that qemu 7.2 can emulate switched on, LiteRT 2.3 computes wrong int8 values.
    """
    libraries = Path("/usr/aarch64-linux-gnu/lib")
    if not EMULATOR or not libraries.is_dir():
        pytest.skip("needs qemu-user-static and gcc-aarch64-linux-gnu")
    root = tmp_path_factory.mktemp("arm")
    (root / "lib").symlink_to(libraries)
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(ARM_CPUINFO)  # runtimes ask it for the processor's features; the host's would mislead them
    return [EMULATOR, "-cpu", "cortex-a76", "-L", str(root), str(runtimes.runner("linux-aarch64"))]


@pytest.mark.slow
def test_arm_build_with_the_pinned_libraries(arm: list[str], tmp_path: Path) -> None:
    samples = twin_samples()
    for runtime, make in {"litert": twins_tflite, "onnxruntime": twins_onnx}.items():
        library = runtimes.install(runtime, "linux-aarch64")
        folder = jobs.write(tmp_path / runtime, make(tmp_path), samples, TWINS, library=library, min_runs=3)
        code, result = jobs.execute(arm, folder, tmp_path / f"{runtime}-out")
        assert (code, result.error) == (0, "")
        for sample, got in zip(samples, jobs.outputs(tmp_path / f"{runtime}-out", result), strict=True):
            np.testing.assert_array_equal(got["diff"], sample["x"] - sample["y"])
            np.testing.assert_array_equal(got["sum"], sample["x"] + sample["y"])


@pytest.mark.slow
def test_arm_build_counts_what_xnnpack_took(arm: list[str], tmp_path: Path) -> None:
    """The TfLite C interface tells every operator."""
    library = runtimes.install("litert", "linux-aarch64")
    for accelerator, expected in {
        "xnnpack": Delegation("xnnpack", 2, 3, 2, ("ADD",), ("REVERSE_V2",)),
        "cpu": Delegation("", 0, 3, 0, (), ("ADD", "REVERSE_V2")),
    }.items():
        sample, wanted = {"x": np.array([[1, 2, 3, 4]], "f")}, [TensorSpec("y", (1, 4), "float32")]
        folder = jobs.write(tmp_path / accelerator, half_delegated(tmp_path), [sample], wanted, library=library, accelerator=accelerator)
        _, result = jobs.execute(arm, folder, tmp_path / f"{accelerator}-out")
        assert result.delegation == expected
        np.testing.assert_array_equal(jobs.outputs(tmp_path / f"{accelerator}-out", result)[0]["y"], [[16, 12, 8, 4]])


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 3), (1, 3)])
def test_arm_build_takes_an_open_dimension(arm: list[str], shape: tuple[int, int], tmp_path: Path) -> None:
    x, y = ("x", "float32", (-1, 3)), ("y", "float32", (-1, 3))
    model = tiny.write_tflite(tmp_path / "m.tflite", [x, y], [("ADD", ["x", "x"], ["y"])], ["x"], ["y"])
    sample = {"x": np.arange(math.prod(shape), dtype="f").reshape(shape)}
    folder = jobs.write(tmp_path / "job", model, [sample], [TensorSpec("y", shape, "float32")], library=runtimes.install("litert", "linux-aarch64"))
    _, result = jobs.execute(arm, folder, tmp_path / "out")
    assert result.error == ""
    np.testing.assert_array_equal(jobs.outputs(tmp_path / "out", result)[0]["y"], 2 * sample["x"])


@pytest.mark.slow
def test_efficientnet_on_arm_gives_torch_s_logits(arm: list[str], tmp_path: Path) -> None:
    """The trained network, through ONNX, on emulated Arm: the float source model is the reference."""
    torch = pytest.importorskip("torch")
    from tests.zoo import crops, models

    model, _ = models.efficientnet_lite0()
    image = torch.from_numpy(crops.crops(1, seed=4))
    torch.onnx.export(model, (image,), str(tmp_path / "m.onnx"), dynamo=True, external_data=False, input_names=["image"], output_names=["logits"])
    with torch.no_grad():
        expected = model(image).numpy()
    library = runtimes.install("onnxruntime", "linux-aarch64")
    folder = jobs.write(
        tmp_path / "job", tmp_path / "m.onnx", [{"image": image.numpy()}], [TensorSpec("logits", (1, 1000), "float32")], library=library
    )
    _, result = jobs.execute(arm, folder, tmp_path / "out")
    got = jobs.outputs(tmp_path / "out", result)[0]["logits"]
    np.testing.assert_allclose(got, expected, atol=1e-4)  # float32 sums in another order; the logits reach about 10
    assert got.argmax() == expected.argmax()
    assert contract.read_job(folder).runtime == "onnxruntime"


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
