"""The native runner, built here: its values against the Python runtimes and numpy, and what it reports when a runtime fails."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import __version__, native_build
from edgekit.tensors import TensorSpec
from tests import jobs, tiny
from tests.runner_models import TWINS, half_delegated, twin_samples, twins_onnx, twins_tflite

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
