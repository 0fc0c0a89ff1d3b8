"""The zoo for ONNX Runtime targets: each model at a precision that suits it becomes a verified bundle; one runs on an emulated phone and over ssh."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgekit import bundle, device, packager, tester
from edgekit import target as targets
from edgekit.errors import UsageError
from edgekit.runner import RunOptions
from tests.android_fixtures import require_device
from tests.ssh_board import Board, board
from tests.zoo import table

pytestmark = pytest.mark.slow
__all__ = ["board"]


@dataclasses.dataclass(frozen=True)
class Cell:
    """A model and a precision, with a floor under its fidelity to the float source (dB), below what is reached now, and the most bytes.

    What is asked of the precision itself is the profile's tolerance: without it there would be no bundle.
    """

    name: str
    precision: str
    least_db: float
    most_bytes: int


CELLS = (
    Cell("efficientnet-lite0", "w8", 20.0, 5_000_000),
    Cell("ppocr-cls", "w8a8", 25.0, 300_000),
    Cell("silero-vad", "fp16", 55.0, 660_000),
    Cell("magika", "w8", 35.0, 850_000),
    Cell("basic-pitch-onnx", "w8", 20.0, 380_000),
    Cell("silero-vad", "w8a8", 20.0, 400_000),
    Cell("magika", "w8a8", 20.0, 900_000),
)


def packaged(name: str, precision: str, folder: Path, target: str = "android-arm64-ort") -> Path:
    row = table.rows()[name]
    np.savez(folder / "samples.npz", **row.samples(6, 1))
    options = packager.Options(
        inputs=row.inputs, calibration=str(folder / "samples.npz"), precision=precision, rounding="nearest", out=folder / "out", rebuild=True
    )
    outcome = packager.package(row.reference, target, options)
    assert outcome.bundle is not None, outcome.findings
    return outcome.bundle


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.name}-{cell.precision}")
def test_a_zoo_model_becomes_a_verified_bundle(cell: Cell, tmp_path: Path) -> None:
    path = packaged(cell.name, cell.precision, tmp_path)
    with bundle.open(path) as opened:
        manifest = opened.manifest
        assert opened.read("trim/model.ort") and opened.read("trim/required_operators_and_types.config")
    assert manifest.artifact.bytes <= cell.most_bytes
    assert min(loss.sqnr_db if loss.sqnr_db is not None else np.inf for loss in manifest.loss) >= cell.least_db
    assert all(verdict.status == "accelerated" for verdict in manifest.verdicts if verdict.delegate == "ort_cpu")
    run = tester.test(path, [device.parse("local:")], tester.Options(RunOptions(min_runs=0, threads=1)))
    assert run.reports[0].verdict == "passed", [finding.message for finding in run.reports[0].findings]


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packaged("ppocr-cls", "w8a8", tmp_path_factory.mktemp("phone"))


def test_an_emulated_phone_computes_the_same(quantized: Path) -> None:
    require_device()
    (report,) = tester.test(quantized, [device.parse("virtual:android-arm64")], tester.Options(RunOptions(min_runs=0))).reports
    assert report.verdict == "passed", [finding.message for finding in report.findings]
    assert report.device.emulated and report.conditions is not None and report.conditions.runtime == "onnxruntime"


def test_a_board_over_ssh_computes_the_same(board: Board, tmp_path: Path) -> None:
    unit = msgspec.structs.replace(device.parse(f"ssh:127.0.0.1:{board.port}"), options=board.options())
    with pytest.raises(UsageError, match="was packaged for linux-arm64-ort"):
        tester.verify(bundle.open(packaged("ppocr-cls", "fp16", tmp_path, "linux-arm64-ort")), unit, tester.Options())
    profile = targets.paths()["linux-arm64-ort"].read_text("utf-8")
    here = tmp_path / "board.toml"
    here.write_text(profile.replace("linux-arm64-ort", "board").replace("linux-aarch64", "linux-x86_64").replace('abi = "aarch64"', 'abi = "x86_64"'))
    report = tester.verify(bundle.open(packaged("ppocr-cls", "fp16", tmp_path, str(here))), unit, tester.Options(RunOptions(min_runs=0)))
    assert report.verdict == "passed", [finding.message for finding in report.findings]
