"""The wheel, installed alone with its base dependencies: light, complete, and quick to answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cli import ROOT

pytestmark = pytest.mark.slow

VERSIONS = ("3.11", "3.12", "3.13")
MOST_BYTES = 12_000_000
"""All of the base install but numpy, whose own wheel takes some 55 MB."""
LEFT_OUT = ("pip", "setuptools", "_distutils_hack", "numpy")
DATA = ("targets/android-arm64.toml", "devices", "apps/CONTRACT.md", "apps/runner")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def interpreters() -> dict[str, str]:
    """Interpreters by version: this one, those on the path and those that pyenv or uv keep."""
    found = {"{}.{}".format(*sys.version_info[:2]): sys.executable}
    places = [Path.home() / ".pyenv" / "versions", Path.home() / ".local" / "share" / "uv" / "python"]
    for version in VERSIONS:
        kept = [str(path) for place in places for path in sorted(place.glob(f"*{version}.*/bin/python{version}"))]
        usable = [path for path in (shutil.which(f"python{version}"), *kept) if path and works(path, version)]
        if usable:
            found.setdefault(version, usable[0])
    return found


def works(python: str, version: str) -> bool:
    """A shim may be there without the version behind it."""
    done = subprocess.run([python, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


def clean(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return kept | {"XDG_CACHE_HOME": str(folder / "cache"), "EDGEKIT_FARM": ""}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_base_install(version: str, wheel: Path, tmp_path: Path) -> None:
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    venv = tmp_path / "venv"
    subprocess.run([python, "-m", "venv", str(venv)], check=True, capture_output=True)
    inside = str(venv / "bin" / "python")
    installed = subprocess.run([inside, "-m", "pip", "install", "-q", str(wheel)], capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(venv / "bin" / "edgekit"), *arguments]
        return subprocess.run(command, cwd=tmp_path, env=clean(tmp_path), capture_output=True, text=True, check=False)

    def edgekit(*arguments: str) -> str:
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "android-arm64" in edgekit("targets")
    assert "edgekit package" in edgekit("--help")
    assert "virtual:android-arm64" in edgekit("devices")
    assert "edgekit[litert]" in edgekit("doctor")
    (packages,) = (venv / "lib").glob("python3.*/site-packages")
    for name in DATA:
        assert (packages / "edgekit" / "_data" / name).exists(), name
    assert not (packages / "tests").exists()
    own = [path for path in packages.rglob("*") if path.is_file() and not path.relative_to(packages).parts[0].startswith(LEFT_OUT)]
    size = sum(path.stat().st_size for path in own if "__pycache__" not in path.parts)
    assert size < MOST_BYTES
    (tmp_path / "m.onnx").write_bytes(b"x")
    missing = run("package", "m.onnx", "--target", "android-arm64")
    assert missing.returncode == 3
    assert "pip install 'edgekit[onnx]'" in missing.stderr
    assert "Traceback" not in missing.stderr
