"""Bundles proved on the virtual Android device: started for the test, and reached by address through the system's adb."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from edgekit import packager, runtimes
from edgekit.virtual import android
from tests import tiny
from tests.android_fixtures import private_adb, require_device
from tests.e2e import models
from tests.e2e.cli import ROOT
from tests.zoo import table

pytestmark = pytest.mark.slow

REPORT_SCHEMA = ROOT / "docs" / "report.schema.json"
VIRTUAL = "virtual:android-arm64"


@pytest.fixture(scope="module", autouse=True)
def _phone() -> None:
    require_device()


def run(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgekit", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=env or os.environ, capture_output=True, text=True, check=False, timeout=600)


def proved(bundle: Path, device: str, *, runs: int = 0, env: dict[str, str] | None = None) -> dict[str, Any]:
    """The one report of `edgekit test --json`, which obeys the published schema and passed."""
    done = run("test", bundle, "--device", device, "--runs", runs, "--seconds", 1, "--json", env=env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    document = json.loads(done.stdout)
    jsonschema.Draft202012Validator(json.loads(REPORT_SCHEMA.read_text("utf-8"))).validate(document)
    (report,) = document["reports"]
    assert report["verdict"] == "passed"
    assert report["device"]["emulated"] is True
    assert report["device"]["abi"] == "arm64-v8a"
    report_: dict[str, Any] = report
    return report_


def make(reference: str, data: Path, out: Path, precision: str, *, target: str = "android-arm64", **fields: Any) -> Path:
    options = packager.Options(calibration=str(data), precision=precision, rounding="nearest", out=out, rebuild=True, **fields)
    outcome = packager.package(reference, target, options)
    assert outcome.bundle is not None, outcome.findings
    return outcome.bundle


@pytest.mark.parametrize("precision", ["fp32", "w8a8"])
def test_a_trained_network(precision: str, lite0: Path, lite0_samples: Path, tmp_path: Path) -> None:
    report = proved(make(str(lite0), lite0_samples, tmp_path, precision, min_sqnr_db=10.0), VIRTUAL, runs=3)
    host = [comparison for comparison in report["comparisons"] if comparison["against"] == "host"]
    assert {comparison["inputs"] for comparison in host} == {"samples", "random"}
    latency = report["latency"]
    assert latency["emulated"] is True


@pytest.mark.parametrize("name", ["face-detection-short-range", "magika"])
def test_several_outputs_and_integer_inputs(name: str, tmp_path: Path) -> None:
    row = table.rows()[name]
    np.savez(tmp_path / "samples.npz", **row.samples(8, 1))
    report = proved(make(row.reference, tmp_path / "samples.npz", tmp_path, "fp32", inputs=row.inputs), VIRTUAL)
    for comparison in report["comparisons"]:
        if comparison["against"] == "reference":
            assert len(comparison["outputs"]) == (2 if name.startswith("face") else 1)


@pytest.mark.parametrize("precision", ["fp32", "w8a8"])
def test_a_trained_network_in_onnx_runtime(precision: str, tmp_path: Path) -> None:
    row = table.rows()["ppocr-cls"]
    np.savez(tmp_path / "samples.npz", **row.samples(8, 1))
    bundle = make(row.reference, tmp_path / "samples.npz", tmp_path, precision, target="android-arm64-ort", inputs=row.inputs, min_sqnr_db=5.0)
    report = proved(bundle, VIRTUAL, runs=2)
    conditions = report["conditions"]
    assert (conditions["runtime"], conditions["runtime_version"]) == ("onnxruntime", runtimes.version("onnxruntime", "linux-aarch64"))
    assert conditions["peak_memory_bytes"] > 10_000_000
    assert report["latency"]["samples_ns"]


def test_an_operator_that_only_a_newer_runtime_accelerates_is_no_silent_fallback(tmp_path: Path) -> None:
    """XNNPACK takes LOG from LiteRT 2.2.0 on; the library for emulated Arm is older."""
    tensors = [(name, "float32", (1, 16)) for name in ("x", "e", "y")]
    model = tiny.write_tflite(tmp_path / "log.tflite", tensors, [("EXP", ["x"], ["e"]), ("LOG", ["e"], ["y"])], ["x"], ["y"])
    np.savez(tmp_path / "samples.npz", x=np.linspace(-2, 2, 16 * 8, dtype="f").reshape(8, 1, 16))
    bundle = make(str(model), tmp_path / "samples.npz", tmp_path, "fp32")
    report = proved(bundle, VIRTUAL)
    assert (report["placement"]["planned_nodes"], report["placement"]["total_nodes"]) == (1, 2)
    assert report["placement"]["reported"]["nodes"] == 1
    assert "LOG from 2.2.0 on" in report["placement"]["newer"] and "is 2.1.0" in report["placement"]["newer"]
    here = run("test", bundle, "--device", "local:", "--runs", 0, "--json")
    assert json.loads(here.stdout)["reports"][0]["placement"]["planned_nodes"] == 2  # this machine's is new enough


def test_a_started_device_through_the_systems_adb(tmp_path: Path) -> None:
    bundle = make(str(models.dense(tmp_path / "dense.tflite")), models.samples(tmp_path / "x.npz"), tmp_path, "w8a8")
    started = run("devices", "start", VIRTUAL, "--count", 2)
    assert started.returncode == 0, started.stderr
    address, serial, other_address, other = started.stdout.split()
    assert address != other_address
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
    try:
        (tmp_path / "home").mkdir()
        with private_adb("system", tmp_path / "home") as server:
            assert b"connected to" in server.run("connect", address).stdout
            assert address.encode() in server.run("devices").stdout
            listed = run("devices", "--json", env=os.environ | {"ANDROID_ADB_SERVER_PORT": str(server.port)})
            assert {"address": f"adb:{address}", "state": "device"} in json.loads(listed.stdout)["attached"]
            report = proved(bundle, f"adb:{address}?server_port={server.port}")
            assert report["device"]["os"].startswith("android")
            left = server.run("-s", address, "shell", "ls -A /data/local/tmp/edgekit").stdout.decode().split()
            assert left == ["cache"]
            assert run("devices", "clear", f"adb:{address}?server_port={server.port}").returncode == 0
            assert server.run("-s", address, "shell", "ls -A /data/local/tmp/edgekit").stdout == b""
        with android.device() as of_a_test:
            assert run("devices", "stop", serial).returncode == 0
            assert run("devices", "stop", "--all").returncode == 0
            assert of_a_test.serial in {phone.serial for phone in android.running()}
    finally:
        left = {phone.serial for phone in android.running()} & {serial, other}
        assert all(run("devices", "stop", name).returncode == 0 for name in left)
    assert not left
