"""The command line as a user types it, in fresh interpreters where start-up matters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "torch",
    "tensorflow",
    "keras",
    "onnx",
    "onnxruntime",
    "ai_edge_litert",
    "ai_edge_quantizer",
    "litert_torch",
    "coremltools",
    "adbutils",
    "numpy",
    "PIL",
)


def edgekit(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "edgekit", *arguments], capture_output=True, text=True, cwd=cwd, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["targets"], ["devices"], ["package", "--help"], ["test", "--help"]])
def test_start_up_imports_no_framework(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from edgekit.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)\n"
    )
    no_server = os.environ | {"ANDROID_ADB_SERVER_PORT": "1"}
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, env=no_server)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().splitlines()[-1] == "[]"
    assert done.stdout


def test_an_unknown_target_offers_the_close_match(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(b"x")
    done = edgekit("package", str(tmp_path / "m.tflite"), "--target", "andriod-arm64")
    assert done.returncode == 2
    assert "unknown target 'andriod-arm64'" in done.stderr
    assert "did you mean android-arm64?" in done.stderr


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    done = edgekit("package", str(tmp_path / "none.onnx"), "--target", "android-arm64")
    assert done.returncode == 2
    assert "none.onnx: no such file" in done.stderr


def test_what_a_model_is_called_cannot_steer_the_terminal(tmp_path: Path) -> None:
    done = edgekit("inspect", str(tmp_path / "\x1b[2Jred.onnx"))
    assert done.returncode == 2
    assert "\\x1b[2Jred.onnx: no such file" in done.stderr
    assert "\x1b" not in done.stderr


def test_an_error_is_a_document_where_json_is_asked_for(tmp_path: Path) -> None:
    done = edgekit("test", str(tmp_path / "none.edgekit"), "--device", "local:", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["exit_code"] == 2


def test_a_profile_of_ones_own_rejects_an_unknown_key(tmp_path: Path) -> None:
    (tmp_path / "board.toml").write_text('name = "board"\nsumary = "x"\n')
    done = edgekit("targets", "./board.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "board.toml" in done.stderr
    assert "sumary" in done.stderr
    assert "did you mean summary?" in done.stderr


def test_targets_as_json() -> None:
    done = edgekit("targets", "android-arm64", "--json")
    assert json.loads(done.stdout)["backend"] == "litert"
