"""Both executors obey `apps/CONTRACT.md`: the same job gives the same values, the same mistake the same stage."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from edgekit import hostrun, resources, runtimes
from edgekit import job as contract
from edgekit.errors import RunnerError
from edgekit.job import Job, Result
from edgekit.tensors import TensorSpec
from tests import jobs, tiny
from tests.runner_models import TWINS, accumulator, twin_samples, twins_onnx, twins_tflite

TEXT = (resources.directory("apps") / "CONTRACT.md").read_text("utf-8")

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="the native runner needs a C compiler")


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("twins")
    return {"litert": twins_tflite(folder), "onnxruntime": twins_onnx(folder)}


def _section(number: int) -> str:
    return TEXT.split(f"## {number}. ")[1].split("\n## ")[0]


def _keys(number: int) -> set[str]:
    rows = re.findall(r"^\| (`[^|]+`) \|", _section(number), re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`([a-z_]+)`", row)}


@pytest.mark.parametrize(("number", "kind"), [(3, Job), (7, Result)])
def test_the_words_name_every_field(number: int, kind: Any) -> None:
    assert _keys(number) - {"key"} == {field.name for field in msgspec.structs.fields(kind)}


def test_the_words_name_every_stage_and_code() -> None:
    stages = re.findall(r"^\| `([a-z]+)` \|", _section(8), re.MULTILINE)
    assert tuple(stages) == get_args(contract.Stage) == hostrun.STAGES
    codes = [int(x) for x in re.findall(r"\| (?:code )?\|? ?([0-9 |]+) \|", _section(1))[0].split(" | ")]
    assert codes == [0, hostrun.EXIT_USAGE, *range(hostrun.EXIT_STAGE, hostrun.EXIT_STAGE + len(stages))]


def _native(folder: Path, out: Path) -> tuple[int, Result]:
    return jobs.execute(jobs.native(), folder, out)


def _python(folder: Path, out: Path) -> tuple[int, Result]:
    out.mkdir(exist_ok=True)
    code = hostrun.execute(folder, out)
    return code, contract.read_result(out)


EXECUTORS = [pytest.param(_python, id="python"), pytest.param(_native, id="native", marks=needs_compiler)]
Executor = Callable[[Path, Path], tuple[int, Result]]


def _write(folder: Path, model: Path, **fields: Any) -> dict[str, Any]:
    runtime = "litert" if model.suffix == ".tflite" else "onnxruntime"
    jobs.write(folder, model, twin_samples(2), TWINS, library=runtimes.library(runtime, jobs.HERE), **fields)
    document: dict[str, Any] = json.loads((folder / "job.json").read_text())
    return document


MALFORMED: dict[str, Callable[[dict[str, Any]], object]] = {
    "no runtime": lambda job: job.pop("runtime"),
    "no outputs": lambda job: job.pop("outputs"),
    "no samples": lambda job: job.update(samples=[]),
    "an empty sample": lambda job: job["samples"].append([]),
    "another schema": lambda job: job.update(schema=2),
    "threads 0": lambda job: job.update(threads=0),
    "threads of text": lambda job: job.update(threads="4"),
    "threads null": lambda job: job.update(threads=None),
    "runs without end": lambda job: job.update(min_runs=10**9),
    "negative runs": lambda job: job.update(warmup_runs=-1),
    "time without end": lambda job: job.update(max_seconds=1e300),
    "an unknown affinity": lambda job: job.update(affinity="huge"),
    "an absolute artifact": lambda job: job.update(artifact="/etc/passwd"),
    "an artifact outside": lambda job: job.update(artifact="a/../../b"),
    "an absent artifact": lambda job: job.update(artifact="absent.tflite"),
    "an input outside": lambda job: job["samples"][1][0].update(file="../x"),
    "a library outside": lambda job: job.update(library="/lib/libc.so.6"),
    "an unknown dtype": lambda job: job["outputs"][0].update(dtype="float8"),
    "nine dimensions": lambda job: job["outputs"][0].update(shape=[1] * 9),
    "a negative size": lambda job: job["outputs"][0].update(shape=[-4]),
    "a size of text": lambda job: job["outputs"][0].update(shape=["4"]),
    "a product that overflows": lambda job: job["outputs"][0].update(shape=[2**31, 2**31, 2**31]),
    "an output twice": lambda job: job["outputs"].append(job["outputs"][0]),
    "an input twice": lambda job: job["samples"][0].append(job["samples"][0][0]),
    "samples that differ": lambda job: job["samples"][1].pop(),
    "a shape that changes": lambda job: job["samples"][1][0].update(shape=[4, 1]),
    "state from nowhere": lambda job: job.update(state_from={"nothing": "x"}),
    "state to nowhere": lambda job: job.update(state_from={"sum": "nothing"}),
    "one state twice": lambda job: job.update(state_from={"sum": "x", "diff": "x"}),
    "options of numbers": lambda job: job.update(options={"match": 1}),
}


@pytest.mark.parametrize("execute", EXECUTORS)
@pytest.mark.parametrize("mistake", MALFORMED)
def test_a_malformed_job_fails_at_the_stage_job(execute: Executor, mistake: str, twins: dict[str, Path], tmp_path: Path) -> None:
    document = _write(tmp_path / "job", twins["litert"])
    MALFORMED[mistake](document)
    (tmp_path / "job/job.json").write_text(json.dumps(document))
    code, result = execute(tmp_path / "job", tmp_path / "out")
    assert (code, result.status, result.stage) == (10, "failed", "job"), result.error
    assert result.error and result.outputs == ()


@pytest.mark.parametrize("execute", EXECUTORS)
@pytest.mark.parametrize("text", [None, "", "{", "[]", "nonsense", '{"runtime": "\udc80"}', '{"runtime": "a\\ud800"}', "{" * 100, "[" * 5000])
def test_no_job_at_all(execute: Executor, text: str | None, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    if text is not None:
        (tmp_path / "job/job.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    code, result = execute(tmp_path / "job", tmp_path / "out")
    assert (code, result.stage) == (10, "job")


def _cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


LATER: dict[str, tuple[str, Callable[[Path, dict[str, Any]], object]]] = {
    "an unknown runtime": ("library", lambda folder, job: job.update(runtime="tensorrt")),
    "a model of another format": ("model", lambda folder, job: (folder / job["artifact"]).write_bytes(b"no model" * 100)),
    "a model cut short": ("model", lambda folder, job: _cut(folder / job["artifact"], 60)),
    "an empty model": ("model", lambda folder, job: _cut(folder / job["artifact"], 0)),
    "an unknown accelerator": ("prepare", lambda folder, job: job.update(accelerator="warp")),
    "an unknown option": ("prepare", lambda folder, job: job.update(options={"speed": "high"})),
    "an output the model has not": ("prepare", lambda folder, job: job["outputs"][0].update(name="quotient")),
    "an input the model has not": ("prepare", lambda folder, job: [t.update(name="z") for s in job["samples"] for t in s if t["name"] == "x"]),
    "too few inputs": ("prepare", lambda folder, job: job.update(samples=[[t for t in s if t["name"] == "x"] for s in job["samples"]])),
    "two names for one output": ("prepare", lambda folder, job: job.update(runtime_names={"diff": "sum"})),
    "an input of another dtype": ("input", lambda folder, job: [t.update(dtype="int32") for s in job["samples"] for t in s]),
    "an input of another shape": ("input", lambda folder, job: [t.update(shape=[4, 1]) for s in job["samples"] for t in s]),
    "an absent input": ("input", lambda folder, job: (folder / "inputs/1-x.raw").unlink()),
    "a short input": ("input", lambda folder, job: _cut(folder / "inputs/1-x.raw", 15)),
    "a long input": ("input", lambda folder, job: (folder / "inputs/1-x.raw").write_bytes(bytes(17))),
    "no room for outputs": ("output", lambda folder, job: (folder.parent / "out/outputs").write_text("in the way")),
}


@pytest.mark.parametrize("execute", EXECUTORS)
@pytest.mark.parametrize("runtime", ["litert", "onnxruntime"])
@pytest.mark.parametrize("mistake", LATER)
def test_each_failure_names_its_stage(execute: Executor, runtime: str, mistake: str, twins: dict[str, Path], tmp_path: Path) -> None:
    stage, spoil = LATER[mistake]
    document = _write(tmp_path / "job", twins[runtime])
    (tmp_path / "out").mkdir()
    spoil(tmp_path / "job", document)
    (tmp_path / "job/job.json").write_text(json.dumps(document))
    code, result = execute(tmp_path / "job", tmp_path / "out")
    assert (result.stage, code) == (stage, 10 + hostrun.STAGES.index(result.stage or "job")), result.error
    assert result.runtime == document["runtime"] and result.error
    if mistake.split()[-1] == "input":  # the first sample was complete
        assert len(result.outputs) == 1
        jobs.outputs(tmp_path / "out", result)


@pytest.mark.parametrize("execute", EXECUTORS)
@pytest.mark.parametrize("kind", ["tflite", "onnx"])
def test_a_failing_computation_is_the_stage_invoke(execute: Executor, kind: str, tmp_path: Path) -> None:
    """An index out of range, which both runtimes see only when they compute; the first sample is in range and kept."""
    x, y = ("x", "float32", (4,)), ("y", "float32", (1,))
    if kind == "tflite":
        model = tiny.write_tflite(tmp_path / "m.tflite", [x, ("i", "int32", (1,)), y], [("GATHER", ["x", "i"], ["y"])], ["x", "i"], ["y"])
    else:
        model = tiny.write_onnx(tmp_path / "m.onnx", [x, ("i", "int32", (1,))], [y], [("Gather", ["x", "i"], ["y"])])
    samples = [{"x": np.arange(4, dtype="f"), "i": np.array([i], "i4")} for i in (2, 9)]
    library = runtimes.library("litert" if kind == "tflite" else "onnxruntime", jobs.HERE)
    jobs.write(tmp_path / "job", model, samples, [TensorSpec("y", (1,), "float32")], library=library)
    code, result = execute(tmp_path / "job", tmp_path / "out")
    assert (code, result.stage) == (15, "invoke")
    assert [got["y"].tolist() for got in jobs.outputs(tmp_path / "out", result)] == [[2.0]]


@pytest.mark.parametrize("execute", EXECUTORS)
@pytest.mark.parametrize("kind", ["tflite", "onnx"])
def test_an_operator_without_kernel_is_the_stage_prepare(execute: Executor, kind: str, tmp_path: Path) -> None:
    """A custom operator nobody registered; a Sinh of doubles, which ONNX allows and ONNX Runtime has not on the CPU."""
    dtype = "int16" if kind == "tflite" else "float64"
    x, y = ("x", dtype, (1, 4)), ("y", dtype, (1, 4))
    if kind == "tflite":
        model = tiny.write_tflite(tmp_path / "m.tflite", [x, y], [("CUSTOM", ["x"], ["y"])], ["x"], ["y"])
    else:
        model = tiny.write_onnx(tmp_path / "m.onnx", [x], [y], [("Sinh", ["x"], ["y"])])
    library = runtimes.library("litert" if kind == "tflite" else "onnxruntime", jobs.HERE)
    jobs.write(tmp_path / "job", model, [{"x": np.ones((1, 4), dtype)}], [TensorSpec("y", (1, 4), dtype)], library=library)
    code, result = execute(tmp_path / "job", tmp_path / "out")
    assert (code, result.stage) == (13, "prepare"), result.error


@needs_compiler
@pytest.mark.parametrize("kind", ["tflite", "onnx"])
def test_state_and_open_dimensions_alike(kind: str, tmp_path: Path) -> None:
    samples = [{"x": np.full((1, 3), i, "f"), "total": np.zeros((1, 3), "f")} for i in range(4)]
    wanted = [TensorSpec("next", (1, 3), "float32"), TensorSpec("doubled", (1, 3), "float32")]
    library = runtimes.library("litert" if kind == "tflite" else "onnxruntime", jobs.HERE)
    jobs.write(tmp_path / "job", accumulator(tmp_path, kind), samples, wanted, library=library, state_from={"next": "total"})
    made = {}
    for name, execute in {"python": _python, "native": _native}.items():
        _, result = execute(tmp_path / "job", tmp_path / name)
        assert result.error == ""
        made[name] = [got["next"][0, 0] for got in jobs.outputs(tmp_path / name, result)]
    assert made["native"] == made["python"] == [0, 1, 3, 6]


def test_read_job_tells_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"runtime": 3}')
    with pytest.raises(RunnerError, match="runtime") as caught:
        contract.read_job(tmp_path)
    assert caught.value.stage == "job"


NESTED = b'{"status": "ok", "new": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"status": "\xff"}', NESTED])
def test_a_result_that_cannot_be_read_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(RunnerError, match=r"result\.json") as caught:
        contract.read_result(tmp_path)
    assert caught.value.stage == "output"


@pytest.mark.parametrize(("field", "value", "said"), [
    ("latency_ns", "[5, -1]", "latency_ns"), ("latency_ns", f"[{1 << 64}]", "latency_ns"), ("load_cold_ns", "-1", "load_cold_ns"),
    ("peak_memory_bytes", "-4096", "peak_memory_bytes"), ("counters", '{"stack_bytes": -1}', "counters"),
    ("delegation", '{"delegate": "x", "nodes": 3, "total": 2}', "3 of 2 operators"),
    ("delegation", '{"delegate": "x", "nodes": -1, "total": 2}', "-1 of 2"),
])  # fmt: skip
def test_a_result_that_cannot_be_is_told(field: str, value: str, said: str, tmp_path: Path) -> None:
    """Such a run passed, and its report said so."""
    (tmp_path / "result.json").write_text(f'{{"status": "ok", "{field}": {value}}}')
    with pytest.raises(RunnerError, match=rf"result\.json: .*{said}") as caught:
        contract.read_result(tmp_path)
    assert caught.value.stage == "output"


def test_a_result_that_is_too_large_to_be_one_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "result.json").open("wb") as file:
        file.truncate(contract.MOST_BYTES + 1)
    with pytest.raises(RunnerError, match=r"result\.json has 67108865 bytes"):
        contract.read_result(tmp_path)


def test_a_result_that_is_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    with pytest.raises(RunnerError, match=r"result\.json"):
        contract.read_result(tmp_path)
