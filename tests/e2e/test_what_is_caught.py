"""A device that computes something else is caught: the comparison is the real one, only what comes back is tampered with."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edgekit import device, farm, packager, tester
from edgekit import job as contract
from edgekit.report import Report
from edgekit.runner import RunOptions
from edgekit.tensors import read_raw, write_raw
from edgekit.transports import Facts, Link
from tests.e2e import models

Change = Callable[[Path], None]


@dataclasses.dataclass(frozen=True)
class Tampered:
    """A link whose job folder is changed before the run, or whose result folder is after it."""

    link: Link
    before: Change
    after: Change

    def facts(self) -> Facts:
        return self.link.facts()

    def execute(self, job: Path, result: Path, timeout_s: float) -> None:
        self.before(job)
        self.link.execute(job, result, timeout_s)
        self.after(result)

    def close(self) -> None:
        self.link.close()


def nothing(folder: Path) -> None:
    """Leave it as it is."""


def on_outputs(change: Callable[[str, Any], Any]) -> Change:
    """Rewrite every output tensor of a result folder: `change(name, array)`."""

    def after(folder: Path) -> None:
        for sample in contract.read_result(folder).outputs:
            for file in sample:
                array = read_raw(folder / file.file, file.spec)
                write_raw(folder / file.file, change(file.name, array).astype(file.dtype))

    return after


def verified(bundle: Path, monkeypatch: pytest.MonkeyPatch, *, before: Change = nothing, after: Change = nothing) -> Report:
    connect = farm.connect
    monkeypatch.setattr(farm, "connect", lambda unit: Tampered(connect(unit), before, after))
    run = tester.test(bundle, [device.parse("local:")], tester.Options(RunOptions(min_runs=0)))
    return run.reports[0]


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity == "error"}


def make(model: Path, tmp_path: Path, precision: str = "fp32") -> Path:
    data = models.samples(tmp_path / "x.npz")
    io = "int8" if precision == "w8a8" else "float32"
    options = packager.Options(calibration=str(data), precision=precision, io=io, out=tmp_path, rebuild=True)
    outcome = packager.package(str(model), "android-arm64", options)
    assert outcome.bundle is not None, outcome.findings
    return outcome.bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make(models.two_heads(tmp_path / "heads.tflite"), tmp_path)


def test_the_right_model_passes(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = verified(bundle, monkeypatch)
    assert report.verdict == "passed"
    assert all(output.identical for comparison in report.comparisons if comparison.against == "host" for output in comparison.outputs)


def test_another_model_of_the_same_size_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every checksum of the bundle is right: only what the model computes betrays it."""
    bundle = make(models.dense(tmp_path / "dense.tflite"), tmp_path)
    (tmp_path / "other").mkdir()
    models.dense(tmp_path / "other" / "dense.tflite", seed=9)
    other = make(tmp_path / "other" / "dense.tflite", tmp_path / "other")
    with zipfile.ZipFile(bundle) as mine, zipfile.ZipFile(other) as theirs:
        files = {name: mine.read(name) for name in mine.namelist()}
        manifest = json.loads(files["manifest.json"])
        main = manifest["artifact"]["main"]
        swapped = theirs.read(main)
    assert len(swapped) == len(files[main])
    assert swapped != files[main]
    manifest["files"][main]["sha256"] = manifest["artifact"]["sha256"] = hashlib.sha256(swapped).hexdigest()
    files |= {main: swapped, "manifest.json": json.dumps(manifest).encode()}
    wrong = tmp_path / "wrong.edgekit"
    with zipfile.ZipFile(wrong, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    report = verified(wrong, monkeypatch)
    assert report.verdict == "failed"
    assert report.exit_code == 1
    assert "sqnr" in codes(report)


def test_swapped_outputs_are_caught(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def swap(folder: Path) -> None:
        for sample in contract.read_result(folder).outputs:
            left, right = (folder / file.file for file in sample)
            kept = left.read_bytes()
            left.write_bytes(right.read_bytes())
            right.write_bytes(kept)

    report = verified(bundle, monkeypatch, after=swap)
    assert report.verdict == "failed"
    assert {check.name.rpartition(".")[2] for check in report.checks if any(f.severity == "error" for f in check.findings)} == {"left", "right"}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_value_that_is_not_finite_is_caught(value: float, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(name: str, array: Any) -> Any:
        if name == "right":
            array[0, 3] = value
        return array

    report = verified(bundle, monkeypatch, after=on_outputs(spoil))
    assert report.verdict == "failed"
    assert {check.name.rpartition(".")[2] for check in report.checks if any(f.severity == "error" for f in check.findings)} == {"right"}


@pytest.mark.parametrize(("steps", "verdict"), [(1, "passed"), (40, "failed")])
def test_a_drift_of_one_step_passes_and_of_many_fails(steps: int, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = make(models.dense(tmp_path / "dense.tflite"), tmp_path, "w8a8")

    def drift(name: str, array: Any) -> Any:
        assert array.dtype == np.int8
        return np.clip(array.astype(np.int32) + steps * np.where(np.arange(array.size) % 2, 1, -1).reshape(array.shape), -128, 127)

    assert verified(bundle, monkeypatch, after=on_outputs(drift)).verdict == verdict


def test_a_missing_output_is_a_runner_error(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drop(folder: Path) -> None:
        result = contract.read_result(folder)
        contract.write(folder, msgspec.structs.replace(result, outputs=tuple(sample[:1] for sample in result.outputs)))

    report = verified(bundle, monkeypatch, after=drop)
    assert (report.verdict, report.exit_code) == ("not checked", 6)
    assert report.failure is not None
    assert "gave no output 'right'" in report.failure.message


def test_a_silent_fallback_to_the_cpu_fails(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device runs the plain kernels although the plan has XNNPACK: values agree, placement does not."""

    def plain(folder: Path) -> None:
        contract.write(folder, msgspec.structs.replace(contract.read_job(folder), accelerator="cpu"))

    report = verified(bundle, monkeypatch, before=plain)
    assert report.verdict == "failed"
    assert codes(report) == {"silent-fallback"}


def test_a_fallback_that_was_asked_for_is_none(bundle: Path) -> None:
    run = tester.test(bundle, [device.parse("local:")], tester.Options(RunOptions(min_runs=0, accelerator="cpu")))
    assert run.reports[0].verdict == "passed"
