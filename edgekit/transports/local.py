"""This machine as a device: the Python host runner, or a native runner in the job folder, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from edgekit import interruption
from edgekit.errors import DeviceError, RunnerError, UsageError
from edgekit.job import RESULT_FILE
from edgekit.transports import Facts, folders, streams
from edgekit.transports.failures import failure, last_line, parse_options

FORM = DEVICE = "local:"


class LocalOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`runner` says what executes a job: this Python (`edgekit.hostrun`), or the native runner that the job folder then must carry."""

    runner: Literal["python", "native"] = "python"


def check(place: str) -> None:
    """There is only one. Raises `UsageError`."""
    if place:
        raise UsageError(f"local:{place}: nothing follows local:", "this machine is local:")


def connect(address: str, options: Mapping[str, Any]) -> LocalLink:
    """This machine. Raises `UsageError` for an unknown option or an address."""
    check(address)
    return LocalLink(parse_options(options, LocalOptions, "local"))


class LocalLink:
    """This machine."""

    def __init__(self, options: LocalOptions) -> None:
        self._options = options

    def facts(self) -> Facts:
        """What this machine is."""
        machine, system = platform.machine(), platform.system().lower()
        return Facts(
            identity=_identity(),
            os=system,
            abi=machine,
            platform=f"{system}-{machine}",
            runner=self._options.runner,
            model=platform.node(),
            os_build=platform.platform(),
            cores=os.cpu_count(),
            memory_bytes=_memory_bytes(),
            details={"python": platform.python_version()},
        )

    def execute(self, job: Path, result: Path, timeout_s: float) -> None:
        """Run a job folder. Raises `DeviceError` (`hung`, `killed`), `RunnerError` when the runner ended without a result."""
        job = job.resolve()
        # A runner that is killed cannot remove what it keeps for the time of the run: it is all in `scratch`.
        with folders.received(result.resolve()) as part, tempfile.TemporaryDirectory(prefix="edgekit-run-") as scratch:
            code, talk = _run(self._command(job, part), job, timeout_s, scratch)
            if not (part / RESULT_FILE).is_file():
                raise _no_result(code, talk)

    def close(self) -> None:
        """Nothing is held."""

    def _command(self, job: Path, part: Path) -> list[str]:
        if self._options.runner == "python":
            return [sys.executable, "-m", "edgekit.hostrun", str(job), str(part)]
        runner = job / folders.RUNNER
        if not os.access(runner, os.X_OK):
            raise RunnerError(f"the job folder holds no executable {folders.RUNNER!r}", stage="job")
        return [str(runner), str(job), str(part)]


def _run(command: list[str], folder: Path, timeout_s: float, scratch: str) -> tuple[int, str]:
    """Run a command in a session of its own, all of which is killed when time is up or the caller gives up: its exit code, and the last it said."""
    source = str(Path(__file__).resolve().parents[2])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    libraries = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "LD_LIBRARY_PATH": os.pathsep.join(libraries), "TMPDIR": scratch}
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    process = subprocess.Popen(command, env=environment, stdin=nothing, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True)
    talk = streams.Tail(process.stdout)
    try:
        code = _wait(process, timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    try:
        return code, talk.text(1.0)
    except TimeoutError:  # a program of a session of its own keeps the pipe
        return code, ""


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    while True:
        interruption.check()
        left_s = deadline - time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(max(0.0, min(left_s, interruption.SLICE_S)))
        if left_s <= 0:
            raise failure(DEVICE, "hung", f"the run did not end within {timeout_s:g} s", "raise --timeout, or use a smaller model")


def _no_result(code: int, talk: str) -> DeviceError | RunnerError:
    if code == -signal.SIGKILL:
        return failure(DEVICE, "killed", "the runner was killed (signal 9) before it could write a result")
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return RunnerError(f"the runner here ended with {how} and no result: {last_line(talk) or 'it said nothing'}", stage="invoke")


def _identity() -> str:
    try:
        return Path("/etc/machine-id").read_text("ascii").strip() or platform.node()
    except (OSError, UnicodeDecodeError):
        return platform.node()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
