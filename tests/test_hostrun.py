"""Jobs run on this machine by the Python executor, against arithmetic done by hand or by numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import hostrun, hostruntimes
from edgekit.job import Delegation, Job
from edgekit.tensors import TensorSpec
from tests import jobs
from tests.runner_models import TWINS, accumulator, half_delegated, twin_samples, twins_onnx, twins_tflite


@pytest.mark.parametrize("make", [twins_tflite, twins_onnx])
def test_outputs_of_one_shape_keep_their_names(make: Any, tmp_path: Path) -> None:
    samples = twin_samples()
    folder = jobs.write(tmp_path / "job", make(tmp_path), samples, TWINS)
    code, result = jobs.execute(jobs.PYTHON, folder, tmp_path / "out")
    assert (code, result.status, result.error) == (0, "ok", "")
    for sample, got in zip(samples, jobs.outputs(tmp_path / "out", result), strict=True):
        assert list(got) == ["diff", "sum"]
        np.testing.assert_array_equal(got["diff"], sample["x"] - sample["y"])
        np.testing.assert_array_equal(got["sum"], sample["x"] + sample["y"])


def test_names_of_tensors_and_runtime_names(tmp_path: Path) -> None:
    """Without signature names the tensors' own are known; a job's name may be translated to either."""
    sample = twin_samples(1)[0]
    model = twins_tflite(tmp_path)
    own = [TensorSpec("difference", (1, 4), "float32")]
    folder = jobs.write(tmp_path / "job", model, [sample], own, runtime_names={"difference": "d", "x": "a", "y": "b"})
    _, result = jobs.execute(jobs.PYTHON, folder, tmp_path / "out")
    assert result.error == ""
    np.testing.assert_array_equal(jobs.outputs(tmp_path / "out", result)[0]["difference"], sample["x"] - sample["y"])


def test_position_decides_only_when_asked(tmp_path: Path) -> None:
    samples = [{"first": np.full((1, 4), 5, "f"), "second": np.full((1, 4), 2, "f")}]
    wanted = [TensorSpec("p", (1, 4), "float32"), TensorSpec("q", (1, 4), "float32")]
    refused = jobs.write(tmp_path / "a", twins_onnx(tmp_path), samples, wanted)
    code, result = jobs.execute(jobs.PYTHON, refused, tmp_path / "a-out")
    assert (code, result.stage) == (13, "prepare")
    assert "first" in result.error and "diff" not in result.error.split("knows")[0]
    folder = jobs.write(tmp_path / "b", twins_onnx(tmp_path), samples, wanted, options={"match": "index"})
    _, result = jobs.execute(jobs.PYTHON, folder, tmp_path / "b-out")
    got = jobs.outputs(tmp_path / "b-out", result)[0]
    assert (got["p"][0, 0], got["q"][0, 0]) == (7, 3)  # the graph's order: sum, diff


@pytest.mark.parametrize("kind", ["tflite", "onnx"])
def test_state_is_carried_from_sample_to_sample(kind: str, tmp_path: Path) -> None:
    steps = [np.array([[1, 2, 3]], "f") * 10**i for i in range(3)]
    samples = [{"x": step, "total": np.full((1, 3), 0.5 if i == 0 else 99, "f")} for i, step in enumerate(steps)]
    wanted = [TensorSpec("doubled", (1, 3), "float32"), TensorSpec("next", (1, 3), "float32")]
    folder = jobs.write(tmp_path / "job", accumulator(tmp_path, kind), samples, wanted, state_from={"next": "total"}, min_runs=3)
    (folder / "inputs/1-total.raw").unlink()  # not read: it comes from the sample before
    _, result = jobs.execute(jobs.PYTHON, folder, tmp_path / "out")
    assert result.error == ""
    totals = 0.5 + np.cumsum(steps, axis=0)
    for total, got in zip(totals, jobs.outputs(tmp_path / "out", result), strict=True):
        np.testing.assert_array_equal(got["next"], total)
        np.testing.assert_array_equal(got["doubled"], 2 * total)


def test_latency_is_taken_as_asked(tmp_path: Path) -> None:
    folder = jobs.write(tmp_path / "job", twins_onnx(tmp_path), twin_samples(2), TWINS, min_runs=30, warmup_runs=4)
    _, result = jobs.execute(jobs.PYTHON, folder, tmp_path / "out")
    assert len(result.latency_ns) == 30 and min(result.latency_ns) > 0
    assert 3 <= len(result.warmup_ns) <= 4
    assert len(result.sample_ns) == 2
    assert result.library_ns and result.load_cold_ns and result.load_warm_ns
    assert result.peak_memory_bytes and result.peak_memory_bytes > 10_000_000
    assert result.runtime_version and result.runner_version.startswith("python ")


def test_time_limit_ends_the_timing(tmp_path: Path) -> None:
    folder = jobs.write(tmp_path / "job", twins_onnx(tmp_path), twin_samples(1), TWINS, min_runs=1_000_000, max_seconds=0.05, warmup_runs=0)
    _, result = jobs.execute(jobs.PYTHON, folder, tmp_path / "out")
    assert 1 <= len(result.latency_ns) < 1_000_000
    assert result.warmup_ns == ()
    assert sum(result.latency_ns) < 1e9


def test_delegation_counts_what_xnnpack_took(tmp_path: Path) -> None:
    x = np.array([[1, 2, 3, 4]], "f")
    for accelerator, expected in {
        "xnnpack": Delegation("xnnpack", 2, 3, 2, ("ADD",), ("REVERSE_V2",)),
        "cpu": Delegation("", 0, 3, 0, (), ("ADD", "REVERSE_V2")),
    }.items():
        folder = jobs.write(
            tmp_path / accelerator, half_delegated(tmp_path), [{"x": x}], [TensorSpec("y", (1, 4), "float32")], accelerator=accelerator
        )
        _, result = jobs.execute(jobs.PYTHON, folder, tmp_path / f"{accelerator}-out")
        assert result.delegation == expected
        np.testing.assert_array_equal(jobs.outputs(tmp_path / f"{accelerator}-out", result)[0]["y"], [[16, 12, 8, 4]])


def test_reference_kernels_are_other_kernels(tmp_path: Path) -> None:
    """The option is read by the runtime it belongs to, and refused by one that would ignore it."""
    sample = {"x": np.ones((1, 4), "f")}
    wanted = [TensorSpec("y", (1, 4), "float32")]
    good = jobs.write(tmp_path / "a", half_delegated(tmp_path), [sample], wanted, options={"kernels": "reference"})
    assert jobs.execute(jobs.PYTHON, good, tmp_path / "a-out")[0] == 0
    for name, fields in {"b": {"accelerator": "xnnpack"}, "c": {"options": {"kernels": "magic"}}}.items():
        folder = jobs.write(tmp_path / name, half_delegated(tmp_path), [sample], wanted, **{"options": {"kernels": "reference"}, **fields})
        assert jobs.execute(jobs.PYTHON, folder, tmp_path / f"{name}-out")[1].stage == "prepare"


def test_a_runtime_that_dies_is_reported(tmp_path: Path) -> None:
    """The process that holds the runtime is killed; the result says at which stage, and by what."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path/onnxruntime.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    folder = jobs.write(tmp_path / "job", twins_onnx(tmp_path), twin_samples(1), TWINS)
    code, result = jobs.execute(jobs.PYTHON, folder, tmp_path / "out", PYTHONPATH=f"{tmp_path / 'path'}:{Path.cwd()}")
    assert (code, result.status, result.stage) == (11, "failed", "library")
    assert "SIGSEGV" in result.error
    assert result.peak_memory_bytes and f"up to {result.peak_memory_bytes / 1e6:.0f} MB" in result.error


def test_big_processors_are_the_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgekit.hostruntimes import _probe

    for cpu, khz in enumerate((1_800_000, 1_800_000, 2_400_000, 2_400_000, 2_900_000)):
        (tmp_path / f"cpu{cpu}/cpufreq").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/cpufreq/cpuinfo_max_freq").write_text(f"{khz}\n")
    monkeypatch.setattr(_probe, "_CPU", tmp_path)

    def chosen(affinity: str, threads: int) -> list[int]:
        job = Job("litert", "a", ((),), (), threads=threads, affinity=affinity)  # type: ignore[arg-type]  # spelled out by the caller
        return _probe._chosen(job, [0, 1, 2, 3, 4])

    assert chosen("big", 1) == [4]
    assert chosen("big", 2) == [2, 3, 4]
    assert chosen("little", 2) == [0, 1]
    assert chosen("any", 2) == []


def test_temperatures_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgekit.hostruntimes import _probe

    for zone, (kind, value) in enumerate([("cpu", "41000"), ("skin", "33500"), ("cpu", "43000"), ("broken", "-273000")]):
        (tmp_path / f"thermal_zone{zone}").mkdir()
        (tmp_path / f"thermal_zone{zone}/type").write_text(f"{kind}\n")
        (tmp_path / f"thermal_zone{zone}/temp").write_text(f"{value}\n")
    monkeypatch.setattr(_probe, "_THERMAL", tmp_path)
    assert _probe.temperatures() == {"cpu": 41000, "skin": 33500, "cpu@2": 43000}


def test_usage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert hostrun.main([str(tmp_path), str(tmp_path / "nowhere")]) == 2
    assert "usage" in capfd.readouterr().err


def test_runtimes_are_found_by_name() -> None:
    assert {"litert", "onnxruntime"} <= set(hostruntimes.names())
