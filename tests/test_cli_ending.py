"""How the program ends when it was not to end so, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e import models
from tests.e2e.cli import edgekit, environment, refused

SLOW = """import sys, time
print("started", file=sys.stderr, flush=True)
time.sleep({seconds})
print("imported", file=sys.stderr, flush=True)
def build():
    time.sleep(60)
"""

SLEEPY = """import subprocess, sys, time
def build():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        print("started", file=sys.stderr, flush=True)
        time.sleep(60)
    finally:
        child.kill()
        print("undone", file=sys.stderr, flush=True)
"""


def run(command: str, tmp_path: Path) -> tuple[int, str]:
    """A shell's line with `$EDGEKIT` in it: exit code and stderr."""
    env = environment(tmp_path / "cache", EDGEKIT=f"{sys.executable} -m edgekit")
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_undoes_what_is_half_done_and_is_in_the_exit_code(name: str, tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    number, scratch = getattr(signal, name), tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "edgekit", "package", "sleepy:build", "--target", "android-arm64", "--out", "out"]
    env = environment(tmp_path / "cache", TMPDIR=str(scratch))
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "started\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert said.splitlines()[0] == "undone"
    assert said.splitlines()[-1].endswith("; nothing is half-written")
    assert "Traceback" not in said
    assert not list(scratch.iterdir())
    assert not (tmp_path / "out").exists()


def interrupted(tmp_path: Path, *, import_s: float, times: int) -> tuple[int, str]:
    """Exit code, and what is said after the first of the interrupts, which comes while a package is imported."""
    (tmp_path / "slow.py").write_text(SLOW.format(seconds=import_s))
    command = [sys.executable, "-m", "edgekit", "package", "slow:build", "--target", "android-arm64"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path / "cache"), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "started\n"
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        _, said = process.communicate(timeout=30)
    return process.returncode, said


def test_an_interrupt_while_a_package_is_imported_waits_for_it(tmp_path: Path) -> None:
    """An exception inside a native module that is being initialized would abort the process."""
    code, said = interrupted(tmp_path, import_s=1, times=1)
    assert code == 130
    assert said.split("\n\n") == ["imported", "interrupted; nothing is half-written\n"]


def test_the_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    code, said = interrupted(tmp_path, import_s=60, times=2)
    assert code == 130
    assert "imported" not in said


def test_a_reader_that_has_gone_is_no_finding(tmp_path: Path) -> None:
    code, said = run("$EDGEKIT targets | true; exit ${PIPESTATUS[0]}", tmp_path)
    assert (code, said) == (141, "")
    code, said = run("$EDGEKIT package none.onnx -t android-arm64 --json | true; exit ${PIPESTATUS[0]}", tmp_path)
    assert code == 141
    assert "Traceback" not in said


def test_closed_streams_are_written_to_nowhere(tmp_path: Path) -> None:
    models.dense(tmp_path / "dense.tflite")
    code, said = run("$EDGEKIT inspect dense.tflite >&-", tmp_path)
    assert (code, said) == (0, "")
    assert run("$EDGEKIT inspect none.tflite 2>&-", tmp_path) == (2, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["targets", "inspect dense.tflite --json", "package none.onnx -t android-arm64 --json"])
def test_a_full_disk_behind_stdout_is_an_error_not_a_finding(command: str, tmp_path: Path) -> None:
    models.dense(tmp_path / "dense.tflite")
    code, said = run(f"$EDGEKIT {command} > /dev/full", tmp_path)
    assert code == 2
    assert "No space left on device" in said
    assert "Traceback" not in said


def test_a_full_disk_below_the_scratch_folder_is_named(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk."""
    models.dense(tmp_path / "dense.tflite", (256, 256, 256))
    code, said = run("ulimit -f 100; $EDGEKIT package dense.tflite -t android-arm64 -o out", tmp_path)
    assert code == 2, said
    assert "error: " in said
    assert "File too large" in said
    assert "Traceback" not in said
    assert not list((tmp_path / "out").glob("*"))


def test_an_error_that_nothing_foresaw_is_no_finding(tmp_path: Path) -> None:
    """It says where it arose, and its exit code is none of those of a checked model."""
    (tmp_path / "sitecustomize.py").write_text("import edgekit.target\ndef broken(*_): raise KeyError('lost')\nedgekit.target.load = broken\n")
    env = environment(tmp_path / "cache", PYTHONPATH=str(tmp_path))
    done = edgekit("package", "none.onnx", "--target", "android-arm64", cwd=tmp_path, env=env)
    assert done.returncode == 70
    assert "in broken" in done.stderr
    assert done.stderr.splitlines()[-2] == "error: edgekit failed: KeyError: 'lost'"


def test_onnxruntime_is_told_to_report_nothing(tmp_path: Path) -> None:
    """It decides when it is loaded; without the word it opens a session with its collector, which leaves a file in the temporary folder."""
    env = {name: value for name, value in environment(tmp_path, TMPDIR=str(tmp_path)).items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}
    code = "import os, edgekit.formats, onnxruntime; print(os.environ['ORT_DISABLE_TELEMETRY'], os.listdir(os.environ['TMPDIR']))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "1 []\n", done.stderr


def test_an_unwritable_place_of_the_state_is_named(tmp_path: Path) -> None:
    models.dense(tmp_path / "dense.tflite")
    done = edgekit("package", tmp_path / "dense.tflite", "--target", "android-arm64", "--out", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    env = environment(tmp_path / "cache", EDGEKIT_STATE=os.devnull)
    refused(edgekit("test", tmp_path / "dense-android-arm64.edgekit", "--device", "local:", cwd=tmp_path, env=env), 2, os.devnull)


@pytest.mark.parametrize("wanted", [True, False])
def test_no_color_is_heeded_on_a_terminal(wanted: bool, tmp_path: Path) -> None:
    models.dense(tmp_path / "dense.tflite")
    ours, theirs = os.openpty()
    env = environment(tmp_path / "cache", **({} if wanted else {"NO_COLOR": "1"}))
    if wanted:
        env.pop("NO_COLOR", None)
    subprocess.run([sys.executable, "-m", "edgekit", "inspect", "dense.tflite"], cwd=tmp_path, env=env, stdout=theirs, check=True)
    os.close(theirs)
    said = os.read(ours, 65536)
    os.close(ours)
    assert (b"\x1b[" in said) == wanted


def test_a_copy_under_another_name_is_another_bundle(tmp_path: Path) -> None:
    for name in ("one", "two", "one"):
        models.dense(tmp_path / f"{name}.tflite")
        done = edgekit("package", f"{name}.tflite", "--target", "android-arm64", "--out", "out", cwd=tmp_path)
        assert done.stdout.splitlines()[-1] == f"out/{name}-android-arm64.edgekit", done.stderr
    assert len(list((tmp_path / "out").iterdir())) == 2
