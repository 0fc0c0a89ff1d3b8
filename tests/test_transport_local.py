"""This machine as a device, with a native (shell) runner in the job folder."""

from __future__ import annotations

import os
import resource
import tempfile
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


def test_what_a_killed_runner_keeps_for_the_run_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Firmware and emulators work in folders of their own, which a runner that is killed cannot remove."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    job, result = make(tmp_path, 'mkdir "${TMPDIR:-/tmp}/kept"; sleep 60')
    with pytest.raises(DeviceError, match="did not end within 1 s"):
        native().execute(job, result, 1)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_runner_that_talks_without_end_fills_no_disk(tmp_path: Path) -> None:
    job, result = make(tmp_path, "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo the end; exit 3")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, before[1]))
    try:
        with pytest.raises(RunnerError, match="exit code 3 and no result: the end"):
            native().execute(job, result, 30)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
