"""A third party's transport: how long it takes, what it raises and what it answers is checked, and told as its own, of the one unit it was for."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edgekit import interruption
from edgekit.errors import DeviceError, EdgekitError, first_line
from edgekit.transports import Facts, Link, folders
from edgekit.transports.failures import Retry, failure

CONNECT_S = 600.0
"""How long connecting may take: a hosted device may have to be waited for, or started."""

ANSWER_S = 60.0
"""How long a device may take to say what it is, and to be let go."""

CARRY_S = 120.0
"""How much longer than the run's own limit `execute` may take, which carries files as well."""

T = TypeVar("T")


def connect(name: str, transport: Any, address: str, options: Mapping[str, Any]) -> Link:
    """Connect by the plugged-in `transport` called `name`. Raises what of edgekit's errors it raises, and `DeviceError` (`plug-in`) for all else."""
    who = _Plugged(f"{name}:{address}", name, getattr(transport, "__name__", type(transport).__name__))
    link = who.bounded("connect", lambda: transport.connect(address, options), CONNECT_S, too_late=lambda late: late.close())
    for part in ("facts", "execute", "close"):
        if not callable(getattr(link, part, None)):
            raise who.wrong(f"connect gave {_shown(link)}, which has no {part}")
    return ForeignLink(who, link)


class _Plugged(msgspec.Struct, frozen=True):
    """Whose code it is: a device's address, the transport's name, and the module behind it."""

    device: str
    name: str
    module: str

    def bounded(self, what: str, work: Callable[[], T], limit_s: float, too_late: Callable[[T], object] | None = None) -> T:
        """Do work of the plug-in, in a thread that is left behind when it does not end; `too_late` takes what it then still makes."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # sys.exit in a plug-in ends its work, not the other devices'
                done.set_exception(error)

        thread = threading.Thread(target=run, name=f"transport {self.name}", daemon=True)
        thread.start()
        deadline = time.monotonic() + limit_s
        try:
            while (left_s := deadline - time.monotonic()) > 0 and thread.is_alive():
                interruption.check()
                thread.join(min(left_s, interruption.SLICE_S))
            return done.result(0)
        except BaseException as error:
            if not done.done():
                if too_late:
                    done.add_done_callback(lambda late: too_late(late.result()))
                if isinstance(error, TimeoutError):
                    raise failure(self.device, "hung", f"{what} of the transport {self} did not end within {limit_s:g} s") from None
                raise
            if isinstance(error, EdgekitError):
                raise
            raise self.wrong(f"{what} raised {type(error).__name__}: {first_line(error)}") from error

    def wrong(self, what: str) -> DeviceError:
        return failure(self.device, "plug-in", f"the transport {self}: {what}")

    def __str__(self) -> str:
        return f"{self.name} (plug-in {self.module})"


class ForeignLink:
    """A link of a third party's. `retries` lists what it had to do again, and what went wrong after the result was here."""

    def __init__(self, who: _Plugged, link: Link) -> None:
        self._who, self._link, self._late = who, link, list[Retry]()

    @property
    def retries(self) -> list[Any]:
        """The link's own, and those of closing it."""
        own = getattr(self._link, "retries", None)
        return [*(own if isinstance(own, list) else ()), *self._late]

    def facts(self) -> Facts:
        """What the device is. Raises `DeviceError`: `plug-in` for what are no facts."""
        found = self._who.bounded("facts", self._link.facts, ANSWER_S)
        if not isinstance(found, Facts):
            raise self._who.wrong(f"facts gave {_shown(found)}, not edgekit.transports.Facts")
        try:
            checked = msgspec.convert(msgspec.to_builtins(found), Facts)
        except (msgspec.ValidationError, TypeError, OverflowError, RecursionError) as error:
            raise self._who.wrong(f"facts are malformed: {error}") from error
        if checked.runner not in ("native", "python", "resident") or (checked.cores is not None and checked.cores < 1) or not checked.identity:
            raise self._who.wrong(f"facts are malformed: identity {checked.identity!r}, runner {checked.runner!r}, cores {checked.cores}")
        return checked

    def execute(self, job: Path, result: Path, timeout_s: float) -> None:
        """Run a job folder. Raises `DeviceError`, with nothing in `result` then; what is no regular file in a result is refused."""
        with folders.received(result) as part:
            self._who.bounded("execute", lambda: self._link.execute(job, part, timeout_s), timeout_s + CARRY_S)
            self._check(part)

    def close(self) -> None:
        """Let the device go; a failure of that changes no outcome, and is noted."""
        try:
            self._who.bounded("close", self._link.close, ANSWER_S)
        except EdgekitError as error:
            self._late.append(Retry("close", getattr(error, "reason", "failed"), error.message))

    def _check(self, part: Path) -> None:
        if part.is_symlink() or not part.is_dir():
            raise self._who.wrong("execute left no result folder")
        for count, path in enumerate(part.rglob("*"), 1):
            folders.check_count(count)
            if not stat.S_ISREG(mode := path.lstat().st_mode) and not stat.S_ISDIR(mode):
                raise self._who.wrong(f"the result holds {path.name!r}, which is neither a file nor a folder")


def _shown(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
