"""`edgekit package` for android-arm64 within limits, reproducible, and without work where nothing has changed."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import bundle, packager
from edgekit.budget import Limits
from tests.e2e import models
from tests.e2e.cli import edgekit, environment

TARGET = "android-arm64"
QUICK = ("--rounding", "nearest", "--min-sqnr", 10)
"""Plain rounding is quick and costs fidelity; how good the quantizer can be is not the matter here."""


def packaged(*arguments: object, cwd: Path, code: int = 0) -> dict[str, Any]:
    """The JSON document of `edgekit package ARGUMENTS`."""
    done = edgekit("package", *arguments, "--target", TARGET, "--json", cwd=cwd)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "code", "precision"),
    [
        (["--max-model-size", "19MB"], 0, {"fp32"}),
        (["--max-size", "25MB"], 0, {"fp32"}),
        (["--max-model-size", "6MB"], 0, {"w8a8", "w8a16", "w8", "w8-dynamic"}),
        (["--max-model-size", "4MB"], 1, set()),
    ],
)
def test_a_trained_network_within_a_limit(
    limit: list[str], code: int, precision: set[str], lite0: Path, lite0_samples: Path, tmp_path: Path
) -> None:
    document = packaged(lite0, *limit, "--calibration", lite0_samples, *QUICK, "--out", tmp_path / "out", cwd=tmp_path, code=code)
    written = list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else []
    parts = document["manifest"]["usage"]["parts"]
    assert {"model", "runtime"} <= {part["role"] for part in parts} if "role" in parts[0] else len(parts) >= 3
    assert all(part["kind"] in ("measured", "documented", "estimated") for part in parts)
    if code:
        assert written == []
        assert any(finding["code"] == "over-budget" and "--max-model-size" in finding["hint"] for finding in document["findings"])
        return
    with bundle.open(written[0]) as opened:
        manifest = opened.manifest
    assert manifest.artifact.precision in precision
    assert manifest.usage.model_bytes == manifest.artifact.bytes == len(read_artifact(written[0]))
    ceiling = float(limit[1].removesuffix("MB")) * 1e6
    assert (manifest.usage.total_bytes("installed") if limit[0] == "--max-size" else manifest.artifact.bytes) <= ceiling


def read_artifact(path: Path) -> bytes:
    with bundle.open(path) as opened:
        return opened.read(opened.manifest.artifact.main)


def test_a_small_model_whose_runtime_alone_is_over_the_limit(tmp_path: Path) -> None:
    model, data = models.dense(tmp_path / "dense.tflite"), models.samples(tmp_path / "x.npz")
    document = packaged(model, "--max-size", "1MB", "--calibration", data, "--out", tmp_path / "out", cwd=tmp_path, code=1)
    findings = [finding for finding in document["findings"] if finding["code"] == "over-budget"]
    assert len(findings) == 1
    runtime = sum(part["installed_bytes"] for part in document["manifest"]["usage"]["parts"] if part["name"].endswith(".so"))
    assert runtime > 1_000_000
    assert not list((tmp_path / "out").glob("*"))


def test_download_size_is_another_limit_than_installed_size(tmp_path: Path) -> None:
    model = models.dense(tmp_path / "dense.tflite")
    installed = packager.package(str(model), TARGET, packager.Options(precision="fp32", out=tmp_path / "a", rebuild=True)).manifest.usage
    between = (installed.total_bytes("installed") + installed.total_bytes("download")) // 2
    for kind, passes in (("installed", False), ("download", True)):
        limits = Limits(max_total_bytes=between, size_of=kind)
        outcome = packager.package(str(model), TARGET, packager.Options(precision="fp32", limits=limits, out=tmp_path / kind, rebuild=True))
        assert outcome.passed is passes


def test_a_tiny_model_is_not_claimed_to_shrink(tmp_path: Path) -> None:
    """Quantizing it cannot pay: the table holds the measured bytes, and the most faithful that fits is kept."""
    model, data = models.dense(tmp_path / "tiny.tflite", (1, 16, 16, 1)), models.samples(tmp_path / "x.npz", shape=(1, 1))
    outcome = packager.package(str(model), TARGET, packager.Options(calibration=str(data), out=tmp_path, rebuild=True))
    assert outcome.bundle is not None
    assert outcome.manifest.artifact.precision == "fp32"
    small = packager.package(
        str(model), TARGET, packager.Options(calibration=str(data), precision="w8a8", out=tmp_path / "8", rebuild=True, min_sqnr_db=0)
    )
    points = [*outcome.manifest.plan.points, *small.manifest.plan.points]
    assert small.manifest.artifact.bytes == next(point.model_bytes for point in points if point.candidate.precision == "w8a8")
    assert small.manifest.artifact.bytes > outcome.manifest.artifact.bytes / 2


@pytest.mark.parametrize("precision", ["fp32", "fp16", "w8-dynamic", "w8a8", "w8a16"])
def test_the_same_model_and_data_give_the_same_bytes(precision: str, tmp_path: Path) -> None:
    model, data = models.dense(tmp_path / "dense.tflite"), models.samples(tmp_path / "x.npz")
    made = []
    for place in ("a", "b"):
        arguments = ("package", model, "--target", TARGET, "--calibration", data, "--precision", precision, "--min-sqnr", 0, "--rebuild")
        done = edgekit(*arguments, "--out", tmp_path / place, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        made.append(next((tmp_path / place).glob("*.edgekit")).read_bytes())
    assert made[0] == made[1]


SOURCE = """import torch

def build():
    torch.manual_seed({seed})
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5))
    return net.eval(), (torch.zeros(1, 3, 8, 8),)
"""


@pytest.mark.slow
def test_the_same_torch_source_gives_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text(SOURCE.format(seed=3))
    made = []
    for place in ("a", "b"):
        done = edgekit("package", "source:build", "--target", TARGET, "--precision", "fp32", "--rebuild", "--out", tmp_path / place, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        made.append(next((tmp_path / place).glob("*.edgekit")).read_bytes())
    assert made[0] == made[1]


REPEAT = """import sys
from pathlib import Path
from edgekit import packager
outcome = packager.package({reference!r}, "android-arm64", packager.Options(calibration={data!r}, precision={precision!r}, out=Path({out!r})))
frameworks = {{"torch", "tensorflow", "litert_torch", "ai_edge_litert", "ai_edge_quantizer", "onnx", "onnxruntime"}} & set(sys.modules)
print(outcome.unchanged, sorted(frameworks), outcome.bundle)
"""


def again(reference: str, data: Path | None, cwd: Path, precision: str = "fp32") -> tuple[bool, bool]:
    """Package in a fresh process; whether nothing was built, and whether no framework was imported."""
    code = REPEAT.format(reference=reference, data=str(data) if data else None, precision=precision, out=str(cwd / "out"))
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=environment(cwd / "cache"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unchanged, rest = done.stdout.split(" ", 1)
    return unchanged == "True", rest.startswith("[]")


def test_a_repeat_does_no_work_until_something_changes(tmp_path: Path) -> None:
    model, data = models.dense(tmp_path / "dense.tflite"), models.samples(tmp_path / "x.npz")
    assert again(str(model), data, tmp_path) == (False, False)
    assert again(str(model), data, tmp_path) == (True, True)
    assert again(str(model), data, tmp_path, "fp16") == (False, False), "another option"
    models.samples(data, seed=2)
    assert again(str(model), data, tmp_path, "fp16") == (False, False), "other data"
    assert again(str(model), data, tmp_path, "fp16") == (True, True)
    models.dense(model, seed=5)
    assert again(str(model), data, tmp_path, "fp16") == (False, False), "another model"
    made = next((tmp_path / "out").glob("*.edgekit"))
    made.write_bytes(made.read_bytes() + b"x")
    assert again(str(model), data, tmp_path, "fp16") == (False, False), "a damaged bundle"
    with zipfile.ZipFile(made) as archive:
        assert archive.testzip() is None


@pytest.mark.slow
def test_a_repeat_of_a_function_does_no_work_until_its_source_changes(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(SOURCE.format(seed=3))
    assert again("source:build", None, tmp_path) == (False, False)
    assert again("source:build", None, tmp_path) == (True, True)
    source.write_text(SOURCE.format(seed=41))
    assert again("source:build", None, tmp_path) == (False, False)


def test_several_formats_of_calibration_give_the_same_bytes(tmp_path: Path) -> None:
    model, data = models.dense(tmp_path / "dense.tflite"), models.samples(tmp_path / "x.npz")
    folder = tmp_path / "folder"
    folder.mkdir()
    for number, sample in enumerate(np.load(data)["x"]):
        np.save(folder / f"{number:03d}.npy", sample)
    artifacts = []
    for reference in (data, folder):
        options = packager.Options(calibration=str(reference), precision="w8a8", min_sqnr_db=0, out=tmp_path / reference.stem, rebuild=True)
        outcome = packager.package(str(model), TARGET, options)
        assert outcome.bundle is not None, outcome.findings
        artifacts.append(read_artifact(outcome.bundle))
    assert artifacts[0] == artifacts[1]
