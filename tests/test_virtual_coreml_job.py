"""ML Program packages through the job contract, as a device runs them."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import hostrun
from edgekit import job as contract
from edgekit.job import Job, TensorFile
from edgekit.tensors import TensorSpec, read_raw, write_raw
from tests import coreml_packages as packages

pytest.importorskip("torch")

PAIR = (TensorSpec("difference", (1, 4), "float32"), TensorSpec("total", (1, 4), "float32"))


def two_results(folder: Path) -> Path:
    """total = x + y and difference = x - y, in half precision inside."""
    named, op = packages.named, packages.operation
    half = [op("cast", n, {"x": n, "dtype": packages.literal("fp16")}, [named(f"{n}h", "float16", (1, 4))]) for n in ("x", "y")]
    work = [op(kind, kind, {"x": "xh", "y": "yh"}, [named(kind + "h", "float16", (1, 4))]) for kind in ("add", "sub")]
    names = {"add": "total", "sub": "difference"}
    out = [op("cast", n, {"x": k + "h", "dtype": packages.literal("fp32")}, [named(n, "float32", (1, 4))]) for k, n in names.items()]
    body = packages.block([*half, *work, *out], ["total", "difference"])
    return packages.write(folder, packages.model(dict.fromkeys("xy", ("float32", (1, 4))), dict.fromkeys(names.values(), "float32"), body))


def run(tmp_path: Path, artifact: Path, outputs: tuple[TensorSpec, ...] = PAIR, **fields: Any) -> tuple[int, Any, list[dict[str, Any]]]:
    """Execute a job of two samples; its exit code, its result and the outputs by name."""
    job, result = tmp_path / "job", tmp_path / "result"
    result.mkdir()
    job.mkdir()
    shutil.copytree(artifact, job / artifact.name)
    rng = np.random.RandomState(0)
    samples = []
    for index in range(2):
        files = tuple(TensorFile(name, "float32", (1, 4), f"{index}-{name}.raw") for name in ("y", "x"))
        for file in files:
            write_raw(job / file.file, rng.randn(1, 4).astype(np.float32))
        samples.append(files)
    contract.write(job, Job("coreml", artifact.name, tuple(samples), outputs, **{"min_runs": 3, "warmup_runs": 1, **fields}))
    code = hostrun.execute(job, result)
    got = contract.read_result(result)
    return code, got, [{f.name: read_raw(result / f.file, f.spec) for f in sample} for sample in got.outputs]


def test_results_keep_names_precision_and_every_sample(tmp_path: Path) -> None:
    code, result, outputs = run(tmp_path, two_results(tmp_path / "m.mlpackage"))
    assert (code, result.error, len(result.latency_ns)) == (0, "", 3)
    assert result.runtime_version.startswith("edgekit ")
    assert result.delegation is None
    for index, got in enumerate(outputs):
        x, y = (np.fromfile(tmp_path / "job" / f"{index}-{name}.raw", np.float32).reshape(1, 4).astype(np.float16) for name in "xy")
        np.testing.assert_array_equal(got["total"], (x + y).astype(np.float32))
        np.testing.assert_array_equal(got["difference"], (x - y).astype(np.float32))


@pytest.mark.parametrize(
    ("damage", "fields", "stage", "words"),
    [
        (lambda p: (p / "Data/com.apple.CoreML/model.mlmodel").write_bytes(b"\xff\xff"), {}, "model", "damaged"),
        (lambda p: None, {"accelerator": "ane"}, "prepare", "ane"),
        (lambda p: None, {"outputs": (TensorSpec("nothing", (1, 4), "float32"),)}, "prepare", "nothing"),
    ],
)
def test_a_failure_names_its_stage(tmp_path: Path, damage: Any, fields: dict[str, Any], stage: str, words: str) -> None:
    path = two_results(tmp_path / "m.mlpackage")
    damage(path)
    code, result, _ = run(tmp_path, path, **fields)
    assert code != 0
    assert (result.status, result.stage) == ("failed", stage)
    assert words in result.error


@pytest.mark.parametrize(("system", "stage", "words"), [("Linux", "library", "Apple's systems only"), ("Windows", "library", "Apple's systems only")])
def test_core_ml_itself_is_asked_for_on_apple_s_systems_only(
    system: str, stage: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    _, result, _ = run(tmp_path, two_results(tmp_path / "m.mlpackage"), options={"engine": "coreml"})
    assert (result.status, result.stage) == ("failed", stage) and words in result.error


@pytest.mark.slow
def test_on_a_mac_the_package_goes_to_core_ml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as this machine can: coremltools loads the package for the units asked for, and says itself that it cannot predict here."""
    ct = pytest.importorskip("coremltools")
    if platform.system() == "Darwin":
        pytest.skip("Core ML is here")
    from edgekit.hostruntimes import _coreml_mac

    assert all(hasattr(ct.ComputeUnit, unit) for unit in _coreml_mac.UNITS.values())
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    _, result, _ = run(tmp_path, two_results(tmp_path / "m.mlpackage"), accelerator="ane")
    assert result.runtime_version.startswith("Core ML, coremltools ") and result.status == "failed" and result.stage in ("prepare", "invoke")
