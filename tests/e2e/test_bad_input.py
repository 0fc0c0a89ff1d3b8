"""Bad input: one clear line, a hint, the right exit code, nothing half-written, never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e import models
from tests.e2e.cli import ROOT, edgekit, environment, refused
from tests.zoo import fetch

HIDE = """import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return models.dense(tmp_path / "dense.tflite")


@pytest.fixture
def bundle(dense: Path, tmp_path: Path) -> Path:
    done = edgekit("package", dense, "--target", "android-arm64", "--precision", "fp32", "--out", tmp_path / "made", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return next((tmp_path / "made").glob("*.edgekit"))


def package(model: object, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Package into `cwd/out`, and see that nothing is left there after a refusal."""
    done = edgekit("package", model, "--target", "android-arm64", "--out", cwd / "out", *arguments, cwd=cwd)
    assert done.returncode == 0 or not list((cwd / "out").glob("*"))
    return done


def write_tflite(path: Path) -> None:
    models.dense(path)


def write_onnx(path: Path) -> None:
    from onnx import TensorProto, helper, save

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def write_pt2(path: Path) -> None:
    import torch

    torch.export.save(torch.export.export(torch.nn.Linear(4, 4).eval(), (torch.zeros(1, 4),)), path)


def write_torchscript(path: Path) -> None:
    import torch

    torch.jit.save(torch.jit.trace(torch.nn.Linear(4, 4).eval(), torch.zeros(1, 4)), path)


def write_keras(path: Path) -> None:
    import keras

    keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)]).save(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("m.tflite", write_tflite),
        ("m.onnx", write_onnx),
        ("m.pt2", write_pt2),
        ("m.pt", write_torchscript),
        ("m.keras", write_keras),
        ("m.h5", write_keras),
    ],
)
def test_a_truncated_model_of_each_format(name: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for size in (len(whole) * 2 // 3, 0):
        (tmp_path / name).write_bytes(whole[:size])
        refused(package(tmp_path / name, cwd=tmp_path), 4, "m")


@pytest.mark.slow
def test_a_truncated_saved_model(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"\x08\x01\x12\xff\xff")
    refused(package(tmp_path / "saved", cwd=tmp_path), 4, "saved: not a readable SavedModel")


@pytest.mark.parametrize("manifest", [None, "{", '{"itemInfoEntries": {}}'])
def test_a_core_ml_package_that_is_damaged_is_a_bad_model(manifest: str | None, tmp_path: Path) -> None:
    (tmp_path / "m.mlpackage").mkdir()
    if manifest is not None:
        (tmp_path / "m.mlpackage" / "Manifest.json").write_text(manifest)
    refused(package(tmp_path / "m.mlpackage", cwd=tmp_path), 4, r"Manifest\.json")
    refused(edgekit("inspect", tmp_path / "m.mlpackage", cwd=tmp_path), 4, r"Manifest\.json")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("none.onnx", "none.onnx: no such file"),
        ("x" * 5000 + ".tflite", "no such file"),
        ("nowhere.models:build", "cannot import nowhere"),
        ("broken:build", "importing broken failed: SyntaxError"),
        ("raising:quits", "the function failed: SystemExit"),
        ("raising:raises", "the function failed: ValueError: weights are gone"),
        ("raising:quit", "has no function quit"),
        ("raising:number", "returned a int"),
        (".", "not a model format"),
    ],
)
def test_a_reference_that_names_no_model(model: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def build(:\n")
    (tmp_path / "raising.py").write_text(
        "def quits(): raise SystemExit(0)\ndef raises(): raise ValueError('weights are gone')\ndef number(): return 3\n"
    )
    done = package(model, cwd=tmp_path)
    refused(done, 4 if "raising:" in model and model.partition(":")[2] != "quit" else 2, words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--input", "y=1x16"], "no input is called 'y'.*\n.*x"),
        (["--input", "x=1x17"], "17"),
        (["--input", "x=sixteen"], "NAME=SIZExSIZE"),
        (["--target", "android-amr64"], "did you mean android-arm64"),
        (["--target", "./none.toml"], "none.toml: no such target profile"),
        (["--precision", "int8"], "no precision 'int8'"),
        (["--max-size", "lots"], "'lots' is not a size"),
        (["--preprocess", "resiez=3"], "unknown key 'resiez'"),
        (["--name", "../outside"], "name '../outside'"),
        (["--name", "n" * 300], "cannot write"),
        (["--io", "int9"], "int9"),
        (["--io", "int8", "--precision", "fp32"], "fp32 computes in float"),
        (["--min-sqnr", "nan"], "'nan' is not a number of decibels"),
        (["--min-sqnr", "good"], "'good' is not a number of decibels"),
        (["--json", "dense.tflite/x.json"], "cannot write"),
        (["--calibration", "none"], "no such calibration data"),
        (["--calibration", "nowhere:data"], "cannot import"),
    ],
)
def test_an_option_that_does_not_fit(arguments: list[str], words: str, dense: Path, tmp_path: Path) -> None:
    refused(package(dense, *arguments, cwd=tmp_path), 2, words)


@pytest.mark.parametrize("place", ["dense.tflite/inside", "/proc/nowhere"])
def test_an_output_folder_that_cannot_be_written(place: str, dense: Path, tmp_path: Path) -> None:
    done = edgekit("package", dense, "--target", "android-arm64", "--out", place, cwd=tmp_path)
    refused(done, 2, "cannot write .*dense-android-arm64.edgekit")


@pytest.mark.parametrize(("bad", "words"), [(np.nan, r"1\.npy: x has 1 values that are not finite"), (None, r"1\.npy: x has the shape")])
def test_calibration_data_that_cannot_be_used_is_named_by_file(bad: float | None, words: str, dense: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        array = np.random.RandomState(number).randn(1, 16).astype(np.float32)
        if number == 1 and bad is not None:
            array[0, 3] = bad
        np.save(folder / f"{number}.npy", array if number != 1 or bad is not None else array[:, :9])
    refused(package(dense, "--calibration", folder, cwd=tmp_path), 2, words)


def test_a_budget_that_nothing_fits_is_an_answer_not_an_error(dense: Path, tmp_path: Path) -> None:
    done = package(dense, "--max-size", "1", "--calibration", models.samples(tmp_path / "x.npz"), cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "OUT OF BOUNDS" in done.stdout
    assert "more than the limit of 1 bytes" in done.stderr
    assert "--max-size" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["units = 3\n", "[units.a]\nadress = 'adb:x'\n", "not toml", "[units.a]\naddress = 'nothing'\n"])
def test_a_bad_farm_file(text: str, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(text)
    refused(edgekit("test", bundle, "--device", "a", "--farm", tmp_path / "lab.toml", cwd=tmp_path), 2, r"lab\.toml")


def rewritten(bundle: Path, out: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a bundle with a changed manifest."""
    with zipfile.ZipFile(bundle) as source, zipfile.ZipFile(out, "w") as sink:
        for name in source.namelist():
            data = source.read(name)
            if name == "manifest.json":
                manifest = json.loads(data)
                change(manifest)
                data = json.dumps(manifest).encode()
            sink.writestr(name, data)
    return out


def test_a_bundle_that_is_newer_damaged_or_absent(bundle: Path, tmp_path: Path) -> None:
    newer = rewritten(bundle, tmp_path / "newer.edgekit", lambda manifest: manifest.update(schema=99))
    refused(edgekit("test", newer, "--device", "local:", cwd=tmp_path), 7, "schema 99, but this edgekit reads")
    refused(edgekit("inspect", newer, cwd=tmp_path), 7, "schema 99")
    (tmp_path / "short.edgekit").write_bytes(bundle.read_bytes()[:-100])
    refused(edgekit("test", tmp_path / "short.edgekit", "--device", "local:", cwd=tmp_path), 7, "short.edgekit: not a readable bundle")
    refused(edgekit("test", tmp_path / "none.edgekit", "--device", "local:", cwd=tmp_path), 2, "no such bundle")


def plugged(folder: Path, group: str) -> str:
    """A PYTHONPATH with an installed distribution whose entry point leads nowhere."""
    info = folder / "plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nbroken = no_such_module:thing\n")
    return str(folder)


def test_a_plugin_that_does_not_load(bundle: Path, tmp_path: Path) -> None:
    env = environment(tmp_path / "cache", PYTHONPATH=plugged(tmp_path / "p1", "edgekit.targets"))
    refused(edgekit("targets", cwd=tmp_path, env=env), 8, "the plug-in broken .*would not load")
    env = environment(tmp_path / "cache", PYTHONPATH=plugged(tmp_path / "p2", "edgekit.transports"))
    done = edgekit("test", bundle, "--device", "broken:x", cwd=tmp_path, env=env)
    assert done.returncode == 8, done.stderr
    assert "the plug-in broken (no_such_module:thing) would not load" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("module", "extra"), [("ai_edge_litert", "litert"), ("flatbuffers", "litert")])
def test_a_missing_package_names_the_extra(module: str, extra: str, dense: Path, tmp_path: Path) -> None:
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(HIDE.format(module=module))
    env = environment(tmp_path / "cache", PYTHONPATH=str(tmp_path / "hide"))
    done = edgekit("package", dense, "--target", "android-arm64", "--precision", "w8a8", "--out", tmp_path / "out", cwd=tmp_path, env=env)
    refused(done, 3, f"needs the package {module}", rf"pip install 'edgekit\[{extra}\]'")
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [1.5, 6.0])
def test_an_interrupted_run_leaves_nothing(after_s: float, tmp_path: Path) -> None:
    """Early, while frameworks load, and in the middle, while a compiler works."""
    fetch.ensure()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = environment(tmp_path / "cache", TMPDIR=str(scratch)) | {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", "")}  # the zoo is there
    command = [sys.executable, "-m", "edgekit", "package", "tests.zoo.models:efficientnet_lite0", "--target", "android-arm64"]
    command += ["--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    time.sleep(after_s)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert stderr.splitlines()[-1] == "interrupted; nothing is half-written"
    assert "Traceback" not in stderr
    assert stdout == ""
    assert not list((tmp_path / "out").glob("*"))
    assert not [path.name for path in scratch.iterdir() if path.name.startswith("edgekit")]
