"""The `shell:`, `shell,v2:` and `exec:` services: a command of the device's own shell, its streams and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from typing import IO, TYPE_CHECKING, NamedTuple

from edgekit.virtual.android.link import Link
from edgekit.virtual.android.stream import Stream, StreamClosedError

if TYPE_CHECKING:
    from edgekit.virtual.android.device import Device

STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)
PACKET = struct.Struct("<BI")

_SHELL = "/system/bin/sh"
_CHUNK_BYTES = 1 << 16
_TAIL_BYTES = 4096
_GRACE_S = 5.0
_starting = threading.Lock()
_awaited: set[int] = set()  # processes whose end a session waits for
_ENVIRONMENT = {
    "PATH": "/system/bin:/data/local/tmp",
    "HOME": "/data",
    "TMPDIR": "/data/local/tmp",
    "ANDROID_ROOT": "/system",
    "ANDROID_DATA": "/data",
    "EXTERNAL_STORAGE": "/sdcard",
    "QEMU_CPU": "cortex-a76",  # the widest model of qemu 7.2 computes wrong int8 products with some kernels
    "USER": "shell",
    "SHELL": _SHELL,
}


class Session(NamedTuple):
    """A command that runs for a stream."""

    device: Device
    link: Link
    stream: Stream
    command: str
    framed: bool
    process: subprocess.Popen[bytes]
    writing: threading.Lock
    moved: dict[str, int]
    tail: bytearray


def serve(device: Device, link: Link, command: str, framed: bool, stream: Stream) -> None:
    """Run `command` (an empty one is an interactive shell without a terminal).

    `framed` is shell v2: stdout and stderr apart, and the exit code at the end; a death by signal N is 128 + N.
    """
    with _session(device, link, command, framed, stream) as session:
        process = session.process
        fault = device.check("run", command, link)
        if fault:
            kill_group(process)
        refused = fault.text if fault and fault.action == "fail" else ""
        if refused:
            _write(session, STDERR, f"{_SHELL}: {refused}\n".encode())
        _pump_all(session)
        code = exit_code(process.wait())
        code = 126 if refused else code
        if code:
            device.lift(session.tail.decode(errors="replace"))
        if framed:
            stream.write(PACKET.pack(EXIT, 1) + bytes([code]))


def exit_code(returncode: int) -> int:
    """The code that a shell gives for `subprocess`'s return code: 128 + N after signal N."""
    return (128 - returncode if returncode < 0 else returncode) & 0xFF


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it started; what a command that is over left in the background stays, as on a phone."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _session(device: Device, link: Link, command: str, framed: bool, stream: Stream) -> Iterator[Session]:
    arguments = [_SHELL, "-c", command] if command else [_SHELL]
    stderr = subprocess.PIPE if framed else subprocess.STDOUT
    pipe = subprocess.PIPE
    with _starting:
        process = subprocess.Popen(arguments, env=_ENVIRONMENT, cwd="/", stdin=pipe, stdout=pipe, stderr=stderr, start_new_session=True, bufsize=0)
        _awaited.add(process.pid)
    session = Session(device, link, stream, command, framed, process, threading.Lock(), {"bytes": 0}, bytearray())
    timer = _timer(session)

    def end() -> None:
        kill_group(process)

    link.at_end.append(end)
    try:
        yield session
    finally:
        if timer:
            timer.cancel()
        link.at_end.remove(end)
        kill_group(process)
        process.wait()
        _awaited.discard(process.pid)
        _reap_orphans()
        for end_of_pipe in (process.stdin, process.stdout, process.stderr):
            if end_of_pipe:
                with contextlib.suppress(OSError):
                    end_of_pipe.close()


def _reap_orphans() -> None:
    """Wait for what has ended in the background: in its namespace, this process is the one that must."""
    with _starting, contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in _awaited:
            os.waitpid(ended.si_pid, os.WNOHANG)


def _timer(session: Session) -> threading.Timer | None:
    delay_s = session.device.armed.delay_s("run", session.command)
    if delay_s is None:
        return None
    timer = threading.Timer(delay_s, _on_time, (session,))
    timer.daemon = True
    timer.start()
    return timer


def _on_time(session: Session) -> None:
    fault = session.device.armed.due_now("run", session.command)
    if fault:
        with contextlib.suppress(StreamClosedError):
            if session.device.suffer(fault, session.link):
                kill_group(session.process)


def _pump_all(session: Session) -> None:
    threading.Thread(target=_pump_stdin, args=(session,), daemon=True).start()
    error = threading.Thread(target=_pump, args=(session, session.process.stderr, STDERR), daemon=True)
    if session.process.stderr:
        error.start()
    _pump(session, session.process.stdout, STDOUT)
    if session.process.stderr:
        error.join()


def _pump(session: Session, pipe: IO[bytes] | None, kind: int) -> None:
    assert pipe is not None
    try:
        while data := os.read(pipe.fileno(), _CHUNK_BYTES):
            _send(session, kind, data)
    except (StreamClosedError, OSError):
        kill_group(session.process)


def _send(session: Session, kind: int, data: bytes) -> None:
    with session.writing:
        carry = partial(_write, session, kind)
        fault = session.device.move("run", session.command, session.link, session.moved["bytes"], memoryview(data), carry)
        if fault:
            kill_group(session.process)
        session.moved["bytes"] += len(data)


def _write(session: Session, kind: int, data: bytes | memoryview) -> None:
    session.tail.extend(data[-_TAIL_BYTES:])
    del session.tail[:-_TAIL_BYTES]
    if data:
        session.stream.write(PACKET.pack(kind, len(data)) + data if session.framed else data)


def _pump_stdin(session: Session) -> None:
    """Feed the command; once the client is gone, end it (at once in v2, after a grace in v1, where a close is also how stdin ends)."""
    stdin = session.process.stdin
    assert stdin is not None
    try:
        for data in _framed_input(session.stream) if session.framed else iter(lambda: session.stream.read_some(_CHUNK_BYTES), b""):
            view = memoryview(data)
            while view:
                view = view[stdin.write(view) or 0 :]
    except StreamClosedError:
        kill_group(session.process)
    except OSError:
        pass  # the command closed its stdin
    with contextlib.suppress(OSError):
        stdin.close()
    session.stream.wait_ended()
    if not session.framed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            session.process.wait(_GRACE_S)
    kill_group(session.process)


def _framed_input(stream: Stream) -> Iterator[bytes]:
    while True:
        kind, size = PACKET.unpack(stream.read_exactly(PACKET.size))
        body = stream.read_exactly(size)
        if kind == CLOSE_STDIN:
            return
        if kind == STDIN:
            yield body
