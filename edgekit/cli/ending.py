"""How the program ends when it was not to end so: told to stop, its output closed, a disk full, a fault of its own."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType
from typing import NoReturn

from edgekit.errors import FULL, EdgekitError, UsageError

FAULT = 70
"""Exit code of a fault of edgekit itself (EX_SOFTWARE of BSD's sysexits.h)."""

PIPE_CLOSED = 128 + 13
"""Exit code when what reads stdout has gone: as a shell reports SIGPIPE."""

_STOPS = ("SIGINT", "SIGTERM", "SIGHUP")
_RETRY_S = 0.02


class Stopped(KeyboardInterrupt):
    """The program was told to stop by the signal `number`: what is half-done is undone on the way out, as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def prepare() -> None:
    """Stop in an orderly way on signals that end a program; write to nowhere where a standard stream is closed."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
    for number in (getattr(signal, name) for name in _STOPS if hasattr(signal, name)):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # nohup and the like have said otherwise
            signal.signal(number, _stop)


_waiting: set[int] = set()


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise `Stopped`; a little later where a package is being imported, whose native code may abort at an exception. The second time at once."""
    if not hasattr(signal, "setitimer"):
        raise Stopped(number)
    if number in _waiting or not _importing(frame):
        _stop_now(number)
    _waiting.add(number)
    signal.signal(signal.SIGALRM, lambda _, now: _stop_between(number, now))
    signal.setitimer(signal.ITIMER_REAL, _RETRY_S)


def _stop_between(number: int, frame: FrameType | None) -> None:
    if number in _waiting and _importing(frame):
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
    elif number in _waiting:
        _stop_now(number)


def _stop_now(number: int) -> NoReturn:
    signal.setitimer(signal.ITIMER_REAL, 0)
    _waiting.discard(number)
    raise Stopped(number)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def stopped(error: BaseException) -> int:
    """Tell that the program was stopped; the exit code, 128 + the signal."""
    number = next((e.number for e in (error, error.__cause__, error.__context__) if isinstance(e, Stopped)), int(signal.SIGINT))
    what = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
    _say(f"{what}; nothing is half-written")
    return 128 + number


def unwritable(error: OSError) -> EdgekitError:
    """What the operating system refused, as an error of edgekit's."""
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
    hint = "free some space there; TMPDIR, EDGEKIT_CACHE and EDGEKIT_STATE put edgekit's own files elsewhere"
    return UsageError(f"{where}{error.strerror or error}", hint if error.errno in FULL else "is it there, and yours to read and write?")


def fault(error: Exception) -> int:
    """Tell of an error that nothing foresaw, with where it arose; the exit code."""
    traceback.print_exception(error)
    _say(f"error: edgekit failed: {type(error).__name__}: {error}\nhint: this is a fault of edgekit: report it with the lines above")
    return FAULT


def flushed(code: int) -> int:
    """`code`, once stdout has been written; what Python would complain of while it ends is told before."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            _say(f"error: stdout: {error.strerror}\nhint: free some space there")
        return PIPE_CLOSED if isinstance(error, BrokenPipeError) else UsageError.exit_code
    return code


def _say(text: str) -> None:
    print(text, file=sys.stderr)
