"""Pipes to a program that may stop: reads and writes that give up after a silence, and bounded looks at what was written."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time
from typing import IO

from edgekit import interruption

TAIL_BYTES = 4 << 20


class TooMuchError(Exception):
    """More came than was allowed."""


class Writer:
    """The standard input of a process, as tarfile wants it. Raises `TimeoutError` when the process takes nothing for `silence_s`."""

    def __init__(self, process: subprocess.Popen[bytes], silence_s: float) -> None:
        assert process.stdin is not None
        self._pipe = process.stdin
        self._silence_s = silence_s
        os.set_blocking(self._pipe.fileno(), False)

    def write(self, data: bytes) -> int:
        """Write all of it."""
        view = memoryview(data)
        while view:
            if not select.select([], [self._pipe], [], self._silence_s)[1]:
                raise TimeoutError
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(self._pipe.fileno(), view) :]
        return len(data)

    def close(self) -> None:
        """Tell the process that there is no more."""
        self._pipe.close()


class Reader:
    """The standard output of a process, as tarfile wants it.

    Raises `TimeoutError` when nothing comes for `silence_s`, `TooMuchError` when more than `limit_bytes` come.
    """

    def __init__(self, process: subprocess.Popen[bytes], silence_s: float, limit_bytes: int) -> None:
        assert process.stdout is not None
        self._pipe = process.stdout
        self._silence_s, self._left_bytes = silence_s, limit_bytes

    def read(self, size: int) -> bytes:
        """Read `size` bytes, fewer only at the end."""
        data = bytearray()
        while len(data) < size:
            if not select.select([self._pipe], [], [], self._silence_s)[0]:
                raise TimeoutError
            chunk = os.read(self._pipe.fileno(), size - len(data))
            if not chunk:
                break
            data += chunk
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise TooMuchError
        return bytes(data)

    def drain(self) -> None:
        """Read to the end, so that the process can."""
        while self.read(1 << 16):
            pass


class Tail:
    """The last 4 MiB of a pipe, which is read to its end in the background, however much comes, and then closed."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        assert pipe is not None
        self._pipe, self._kept = pipe, bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self, limit_s: float) -> str:
        """What came, once the pipe has ended. Raises `TimeoutError` when it has not after `limit_s`."""
        deadline = time.monotonic() + limit_s
        while self._thread.is_alive():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            interruption.check()
            self._thread.join(min(left_s, interruption.SLICE_S))
        return self._kept.decode("utf-8", "replace")

    def _read(self) -> None:
        with self._pipe:
            while data := os.read(self._pipe.fileno(), 1 << 16):
                self._kept += data
                del self._kept[:-TAIL_BYTES]


def converse(process: subprocess.Popen[bytes], stdin: bytes, timeout_s: float) -> tuple[str, str]:
    """Feed a process with pipes and let it end: the last 4 MiB of its standard output and error. Raises `TimeoutError` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    out, err = Tail(process.stdout), Tail(process.stderr)
    with contextlib.suppress(BrokenPipeError):  # a process need not read what it is told
        Writer(process, timeout_s).write(stdin)
    if process.stdin:
        process.stdin.close()
    said = out.text(deadline - time.monotonic()), err.text(deadline - time.monotonic())
    finish(process, max(0.0, deadline - time.monotonic()))
    return said


def finish(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """Wait for the end of a process and return its exit code; one that does not end within `limit_s` is killed. Raises `TimeoutError` then."""
    if process.stdin and not process.stdin.closed:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        abandon(process)
        raise TimeoutError from None


def abandon(process: subprocess.Popen[bytes]) -> None:
    """Make sure that a process is gone and its pipes are closed."""
    if process.poll() is None:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with contextlib.suppress(OSError):
                pipe.close()


def tail(file: IO[bytes]) -> str:
    """The last 4 MiB of a file, as text."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL_BYTES))
    return file.read().decode("utf-8", "replace")
