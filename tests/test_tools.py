from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgekit import tools
from edgekit.errors import MissingPackageError, UsageError


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_TOOLS", str(tmp_path / "tools"))


def test_a_tool_that_is_not_installed_names_the_command():
    assert [(s.name, s.installed) for s in tools.status()] == [("kotlin", False), ("onnx2tf", False)]
    with pytest.raises(MissingPackageError) as error:
        tools.python("onnx2tf")
    assert error.value.hint == "edgekit tools install onnx2tf"


def test_an_unknown_tool_gets_the_close_match():
    with pytest.raises(UsageError) as error:
        tools.install("onnx2tff")
    assert error.value.hint == "did you mean onnx2tf?"


def test_every_requirement_is_pinned_and_fits_a_python():
    for sets in tools.TOOLS.values():
        assert all("==" in requirement for requirements in sets.values() for requirement in requirements)
    assert tools._requirements("onnx2tf", (3, 11))[0] == "onnx2tf==1.29.24"
    assert tools._requirements("onnx2tf", (3, 12))[0] == tools._requirements("onnx2tf", (3, 13))[0] == "onnx2tf==2.6.9"
    with pytest.raises(MissingPackageError, match=r"Python 3\.10"):
        tools._requirements("onnx2tf", (3, 10))


@pytest.mark.slow
def test_an_install_that_fails_leaves_no_tool(tmp_path, monkeypatch):
    pytest.importorskip("uv")
    monkeypatch.setitem(tools.TOOLS, "onnx2tf", {(3, 11): (str(tmp_path / "absent-1.0-py3-none-any.whl"),)})
    with pytest.raises(MissingPackageError, match="onnx2tf could not be installed"):
        tools.install("onnx2tf", Path(sys.executable))
    assert not tools.status()[0].installed


@pytest.mark.slow
def test_an_installed_tool_runs_and_is_kept(tmp_path):
    pytest.importorskip("uv")
    made = tools.install("onnx2tf")
    assert made.installed
    said = subprocess.run([str(tools.python("onnx2tf")), "-m", "onnx2tf", "-V"], capture_output=True, text=True, check=True).stdout
    assert f"onnx2tf=={said.strip()}" in made.requirements
    stamp = tools.python("onnx2tf").lstat().st_mtime_ns
    assert tools.install("onnx2tf") == made
    assert tools.python("onnx2tf").lstat().st_mtime_ns == stamp
