"""This machine as a device, with a native (shell) runner in the job folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from edgekit.errors import DeviceError, RunnerError, UsageError
from edgekit.transports import local as transport
from tests import shell_runner


def native() -> transport.LocalLink:
    return transport.connect("", {"runner": "native"})


def make(folder: Path, do: str = "") -> tuple[Path, Path]:
    job, result = shell_runner.make(folder, do, shell="/bin/sh")
    (job / "runner").chmod(0o755)
    return job, result


def test_a_native_runner_fills_the_result(tmp_path: Path) -> None:
    job, result = make(tmp_path)
    native().execute(job, result, 20)
    assert shell_runner.files(result) == shell_runner.expected()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "result"]


@pytest.mark.parametrize(
    ("do", "kind", "word"),
    [("kill -9 $$", DeviceError, "signal 9"), ("echo why >&2; exit 3", RunnerError, "exit code 3 and no result: why")],
)
def test_a_runner_without_a_result_says_how_it_ended(tmp_path: Path, do: str, kind: type[Exception], word: str) -> None:
    job, result = make(tmp_path, do)
    with pytest.raises(kind, match=word):
        native().execute(job, result, 20)
    assert shell_runner.files(result) == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "result"]


def test_a_run_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    job, result = make(tmp_path, f"(echo $$ > '{tmp_path}/job/pid'; sleep 30) & sleep 30")
    started = time.monotonic()
    with pytest.raises(DeviceError) as caught:
        native().execute(job, result, 0.5)
    assert caught.value.reason == "hung"
    assert time.monotonic() - started < 5
    with pytest.raises(ProcessLookupError):
        os.kill(int((job / "pid").read_text()), 0)


def test_the_python_runner_answers_a_broken_job_with_a_result(tmp_path: Path) -> None:
    from edgekit import job as contract

    job, result = make(tmp_path)
    link = transport.connect("", {})
    assert link.facts().runner == "python"
    link.execute(job, result, 60)
    assert contract.read_result(result).status == "failed"


def test_facts_name_this_machine() -> None:
    facts = native().facts()
    assert facts.platform == f"linux-{os.uname().machine}" or os.uname().sysname != "Linux"
    assert facts.runner == "native"
    assert facts.cores == os.cpu_count()


def test_options_are_checked() -> None:
    with pytest.raises(UsageError):
        transport.connect("x", {})
    with pytest.raises(UsageError):
        transport.connect("", {"runner": "rust"})
