"""Run the command line as a user does, in a process of its own, with a cache of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment(cache: Path, **extra: str) -> dict[str, str]:
    """The process environment: this checkout importable, the record of earlier builds under `cache`."""
    paths = [*filter(None, [extra.pop("PYTHONPATH", "")]), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "EDGEKIT_FARM": "", "XDG_CACHE_HOME": str(cache), **extra}


def edgekit(*arguments: object, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`edgekit ARGUMENTS` run in `cwd`."""
    command = [sys.executable, "-m", "edgekit", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=env or environment(cwd / "cache"), capture_output=True, text=True, check=False, timeout=600)


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """Assert a clean refusal: the exit code, one line that says what, one hint, and no traceback."""
    lines = done.stderr.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert len(errors) == 1, done.stderr
    assert lines.index(errors[0]) == len(lines) - 2, f"no hint after the error: {done.stderr}"
    assert lines[-1].startswith("hint: ")
    for word in words:
        assert re.search(word, errors[0] + "\n" + lines[-1]), (word, done.stderr)
