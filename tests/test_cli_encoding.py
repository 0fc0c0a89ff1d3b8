"""Names beyond ASCII in the C locale, and names that are no text at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgekit.calibration import sources
from edgekit.errors import UsageError
from edgekit.tensors import Signature
from tests.e2e import models

C_LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "COLUMNS": "100"}


def edgekit(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **C_LOCALE, "EDGEKIT_STATE": str(folder / "state"), "EDGEKIT_CACHE": str(folder / "cache"), **more}
    command = [sys.executable, "-m", "edgekit", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False, timeout=300)


@pytest.mark.slow
def test_names_beyond_ascii_go_through_the_c_locale(tmp_path: Path) -> None:
    models.dense(tmp_path / "модель→.tflite")
    models.samples(tmp_path / "пример.npz")
    inspected = edgekit(tmp_path, "inspect", "модель→.tflite")
    assert (inspected.returncode, inspected.stderr) == (0, "")
    assert "модель→" in inspected.stdout and "█" in inspected.stdout
    made = edgekit(tmp_path, "package", "модель→.tflite", "-t", "android-arm64", "-p", "fp32", "-c", "пример.npz", "-o", "вон")
    assert made.returncode == 0, made.stderr
    (bundle,) = (tmp_path / "вон").iterdir()
    assert "модель" in bundle.name
    tested = edgekit(tmp_path, "test", str(bundle), "--device", "local:", "--runs", "0", "--json", "отчёт.json", "--html", "отчёт.html")
    assert (tested.returncode, tested.stderr) == (0, ""), tested.stderr
    assert json.loads((tmp_path / "отчёт.json").read_text("utf-8"))["reports"][0]["bundle"]["name"] == bundle.name
    gone = edgekit(tmp_path, "inspect", "нет.tflite")
    assert (gone.returncode, gone.stdout) == (2, "") and "нет.tflite: no such file" in gone.stderr and "Traceback" not in gone.stderr


def test_a_name_that_is_no_text_is_one_error(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xe9.tflite")
    models.dense(tmp_path / name)
    for command in (("inspect", name, "--json"), ("package", name, "-t", "android-arm64"), ("test", name, "-d", "local:")):
        done = edgekit(tmp_path, *command)
        assert done.returncode == 2
        assert "error: b'\\xff\\xe9.tflite' is not UTF-8\nhint: rename" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_sample_whose_name_is_no_text_is_one_error(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"a\xff.npy")).write_bytes(b"")
    with pytest.raises(UsageError, match=r"the file name b'a\\xff.npy' is not UTF-8"):
        sources.open(str(tmp_path), Signature((), ()), None, 4)


def test_the_mode_is_asked_for_once(tmp_path: Path) -> None:
    """Where Python does not take it, edgekit goes on without."""
    done = edgekit(tmp_path, "targets", PYTHONUTF8="1")
    assert done.returncode == 0 and "android-arm64" in done.stdout
