"""A job folder whose runner is a shell script that obeys the contract: what transports are tested with, on any device with a shell."""

from __future__ import annotations

import os
from pathlib import Path

RUNNER = """#!SHELL
[ -n "$2" ] && [ -f "$1/job.json" ] || exit 2
mkdir "$2/deep"
cat "$1"/inputs/*.raw > "$2/deep/out 0.raw"
if [ -f "$1/do" ]; then . "$1/do"; fi
echo '{"status":"ok"}' > "$2/.result.json.part" && mv "$2/.result.json.part" "$2/result.json"
"""


def make(folder: Path, do: str = "", model_bytes: int = 300_000, shell: str = "/system/bin/sh") -> tuple[Path, Path]:
    """A job folder and an empty result folder below `folder`. `do` is shell text that the runner runs before its result (`$2`: result folder)."""
    job, result = folder / "job", folder / "result"
    (job / "inputs").mkdir(parents=True)
    result.mkdir()
    (job / "job.json").write_text("{}")
    (job / "runner").write_text(RUNNER.replace("SHELL", shell, 1))
    (job / "model.bin").write_bytes(os.urandom(model_bytes))
    for index in range(2):
        (job / "inputs" / f"00{index}-0.raw").write_bytes(bytes([index]) * 1000)
    if do:
        (job / "do").write_text(do)
    return job, result


def expected() -> dict[str, bytes]:
    """What the run leaves."""
    return {"deep/out 0.raw": bytes(1000) + b"\1" * 1000, "result.json": b'{"status":"ok"}\n'}


def files(folder: Path) -> dict[str, bytes]:
    """Names and contents of a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
