"""A run on a device that has a POSIX shell and can carry files: prepare, push, verify, run, pull, clean up; over adb and ssh alike."""

from __future__ import annotations

import hashlib
import signal
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from edgekit.errors import DeviceError, RunnerError
from edgekit.job import RESULT_FILE
from edgekit.transports import folders, scripts
from edgekit.transports.failures import DEAD, Policy, Retry, failure, last_line, reason_of
from edgekit.transports.folders import Entry, Remote

CACHED_FROM_BYTES = 64 << 10
_CLEAN_S = 5.0
_active: set[str] = set()
T = TypeVar("T")


class Completed(msgspec.Struct, frozen=True):
    """A command that ended: exit code (128 + signal when killed), and the tail of what it wrote."""

    code: int
    stdout: str
    stderr: str


class Upload(msgspec.Struct, frozen=True):
    """A local file and the path it gets on the device, relative to the base folder."""

    path: Path
    remote: str
    mode: int


class Carrier(Protocol):
    """What adb and ssh each do in their own way. Everything raises `DeviceError`."""

    device: str
    base: str
    retries: list[Retry]

    @property
    def policy(self) -> Policy:
        """The bounds to keep."""

    def shell(self, script: str, stdin: bytes, timeout_s: float) -> Completed:
        """Run a script; a non-zero exit code is a value."""

    def push(self, files: Sequence[Upload]) -> None:
        """Carry files to existing folders below the base folder."""

    def pull(self, folder: str, names: Sequence[str], into: Path, limit_bytes: int) -> None:
        """Bring files from `folder` (relative to the base folder) into existing local folders, at most `limit_bytes` together."""

    def recover(self) -> None:
        """Wait until a dropped device answers again. Raises what it is when it does not: `offline`, `powered-off`, ..."""


def retried(carrier: Carrier, stage: str, work: Callable[[], T]) -> T:
    """Do work, again after a transient drop, as often as the policy allows; each retry is noted in `carrier.retries`."""
    for attempt in range(carrier.policy.retries + 1):
        try:
            return work()
        except DeviceError as error:
            if error.reason != "dropped":
                raise
            carrier.recover()
            if attempt == carrier.policy.retries:
                raise failure(carrier.device, "dropped", _after_retries(error, attempt)) from error
            carrier.retries.append(Retry(stage, error.reason, error.message))
    raise AssertionError("unreachable: the loop returns or raises")


def execute(carrier: Carrier, job: Path, result: Path, timeout_s: float) -> None:
    """Run a native job folder (with `runner` in it) and fill `result`. `timeout_s` bounds the run; transfers are bounded by the policy.

    Raises `DeviceError` when the device could not be used or killed the runner for memory; `RunnerError` when the runner ended without a result.
    """
    entries = folders.manifest(job)
    if not any(entry.name == folders.RUNNER for entry in entries):
        raise RunnerError(f"the job folder holds no {folders.RUNNER!r}, which {carrier.device} needs to run it", stage="job")
    retried(carrier, "execute", lambda: _attempt(carrier, entries, result, timeout_s))


def clear_cache(carrier: Carrier) -> None:
    """Remove edgekit's cache from the device."""
    _shell(carrier, "clean", scripts.clear(carrier.base))


def _attempt(carrier: Carrier, entries: Sequence[Entry], result: Path, timeout_s: float) -> None:
    run = uuid.uuid4().hex
    _active.add(run)
    litter: tuple[str, ...] = ()
    try:
        litter = _deliver(carrier, entries, run)
        _run(carrier, run, timeout_s)
        _fetch(carrier, run, result)
    except DeviceError as error:
        _clean_after(carrier, error, (run, *litter))
        raise
    except BaseException:
        _clean_quietly(carrier, (run, *litter))
        raise
    else:
        _clean_quietly(carrier, (run, *litter))
    finally:
        _active.discard(run)


def _deliver(carrier: Carrier, entries: Sequence[Entry], run: str) -> tuple[str, ...]:
    """Bring every file to the run folder, verified; returns stale runs to clean up."""
    large = {entry.sha256: entry for entry in entries if entry.size_bytes >= CACHED_FROM_BYTES}
    parents = sorted({str(Path(entry.name).parent.as_posix()) for entry in entries} - {"."})
    printed = _shell(carrier, "push", scripts.prepare(carrier.base, run), scripts.wants(parents, large))
    prepared = scripts.read_prepared(printed, run)
    places = {sha256: f"cache/{sha256}" if sha256 in prepared.cached else f"cache/.{run}-{sha256}" for sha256 in large}
    wanted = {places[entry.sha256] if entry.sha256 in large else f"run-{run}.part/job/{entry.name}": entry for entry in entries}
    carrier.push([_upload(entry, place) for place, entry in wanted.items() if not _is_cached(place)])
    _verify(carrier, wanted)
    lines = [_assembly(entry, places) for entry in entries if entry.sha256 in large]
    executables = [entry.name for entry in entries if entry.executable]
    _shell(carrier, "push", scripts.assemble(carrier.base, run, executables), _lines(_first_is_new(lines)), run=run)
    return scripts.stale(prepared.others, _active, carrier.policy.stale_s)


def _verify(carrier: Carrier, wanted: dict[str, Entry]) -> None:
    """Compare hashes on the device; a rotten cache entry is replaced, a bad push is an error."""
    rotten = _mismatches(carrier, wanted)
    if not rotten:
        return
    pushed = [place for place in rotten if not _is_cached(place)]
    if not pushed:
        carrier.push([_upload(wanted[place], place) for place in rotten])
        pushed = _mismatches(carrier, {place: wanted[place] for place in rotten})
    if pushed:
        raise failure(carrier.device, "corrupt", f"{wanted[pushed[0]].name} arrived with other bytes than were sent")


def _mismatches(carrier: Carrier, wanted: dict[str, Entry]) -> list[str]:
    done = carrier.shell(scripts.verify(carrier.base), _lines(wanted), carrier.policy.stall_s + _hash_s(wanted))
    if done.code == 127:
        raise failure(carrier.device, "unsupported", "there is no sha256sum on the device", "Android 8 or later has one, and so has busybox")
    hashes = {name.lstrip(" *"): sha256 for sha256, _, name in (line.partition(" ") for line in done.stdout.splitlines())}
    return [place for place, entry in wanted.items() if hashes.get(place) != entry.sha256]


def _run(carrier: Carrier, run: str, timeout_s: float) -> None:
    try:
        done = carrier.shell(scripts.start(carrier.base, run), b"", timeout_s)
    except DeviceError as error:
        if error.reason == "hung":
            raise failure(carrier.device, "hung", f"the run did not end within {timeout_s:g} s", "raise --timeout, or use a smaller model") from error
        raise
    listed = carrier.shell(scripts.list_results(carrier.base, run), b"", carrier.policy.stall_s) if done.code else None
    if listed is None or RESULT_FILE in (file.name for file in folders.listing(listed.stdout)):
        return
    raise _no_result(carrier, run, done)


def _no_result(carrier: Carrier, run: str, done: Completed) -> DeviceError | RunnerError:
    """Why a runner ended without a result, from its exit code and the device's own words."""
    said = last_line(done.stderr)
    if done.code == scripts.FAILED:
        return failure(carrier.device, reason_of(said), f"the run could not start: {said}")
    cause = scripts.explain(carrier.shell(scripts.diagnose(carrier.base, run), b"", carrier.policy.stall_s).stdout)
    if done.code == 128 + signal.SIGKILL:
        return failure(carrier.device, "killed", f"the runner was killed (signal 9) before it could write a result{_because(cause)}")
    if done.code in (126, 127):
        reason = reason_of(said, "wrong-platform")
        return failure(carrier.device, reason, f"the runner cannot be executed: {said}{_because(cause)}")
    how = f"signal {done.code - 128}" if done.code > 128 else f"exit code {done.code}"
    return RunnerError(f"the runner on {carrier.device} ended with {how} and no result: {said or 'it said nothing'}", stage="invoke")


def _fetch(carrier: Carrier, run: str, result: Path) -> None:
    remote = folders.listing(_shell(carrier, "pull", scripts.list_results(carrier.base, run)))
    if not any(file.name == RESULT_FILE for file in remote):
        raise RunnerError(f"the runner on {carrier.device} ended well but wrote no {RESULT_FILE}", stage="output")
    with folders.received(result) as part:
        for file in remote:
            (part / file.name).parent.mkdir(parents=True, exist_ok=True)
        carrier.pull(f"run-{run}/result", [file.name for file in remote], part, carrier.policy.result_bytes)
        for file in remote:
            _check(carrier, file, part / file.name)


def _check(carrier: Carrier, file: Remote, path: Path) -> None:
    with path.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != file.sha256:
            raise failure(carrier.device, "corrupt", f"{file.name} came back with other bytes than the device holds")


def _clean_after(carrier: Carrier, error: DeviceError, runs: Sequence[str]) -> None:
    """Clean up after a failure as far as there is a device to clean; what cannot be removed now is stale for the next run."""
    if error.reason in DEAD:
        return
    if error.reason == "dropped":
        carrier.recover()
    try:
        _clean(carrier, runs, _CLEAN_S)
    except DeviceError:
        if error.reason == "hung":
            raise failure(carrier.device, "hung", f"{_bare(error)}; it does not answer any more") from error


def _clean_quietly(carrier: Carrier, runs: Sequence[str]) -> None:
    """Clean up after the outcome is known, which a link that fails now cannot change; it is noted, and the next run removes the rest."""
    try:
        _clean(carrier, runs, carrier.policy.stall_s)
    except DeviceError as error:
        carrier.retries.append(Retry("clean", error.reason, error.message))


def _clean(carrier: Carrier, runs: Sequence[str], timeout_s: float) -> None:
    done = carrier.shell(scripts.clean(carrier.base, runs, sizes=True), b"", timeout_s)
    if done.code:
        raise failure(carrier.device, reason_of(done.stderr), f"the run folder could not be removed: {last_line(done.stderr)}")
    surplus = scripts.evictable(done.stdout, carrier.policy.cache_bytes)
    if surplus:
        _shell(carrier, "clean", scripts.evict(carrier.base), _lines(surplus))


def _shell(carrier: Carrier, stage: str, script: str, stdin: bytes = b"", run: str = "") -> str:
    """Run one of the scripts; what it complains of becomes the error."""
    done = carrier.shell(script, stdin, carrier.policy.stall_s)
    if done.code == scripts.NOT_EXECUTABLE:
        cause = scripts.explain(carrier.shell(scripts.diagnose(carrier.base, run), b"", carrier.policy.stall_s).stdout)
        raise failure(carrier.device, "permission-denied", f"the pushed runner cannot be made executable{_because(cause)}")
    if done.code:
        said = last_line(done.stderr)
        raise failure(carrier.device, reason_of(done.stderr), f"{stage} failed with exit code {done.code}: {said}")
    return done.stdout


def _upload(entry: Entry, place: str) -> Upload:
    return Upload(entry.path, place, 0o755 if entry.executable else 0o644)


def _assembly(entry: Entry, places: dict[str, str]) -> tuple[bool, str, str]:
    return not _is_cached(places[entry.sha256]), entry.sha256, entry.name


def _first_is_new(lines: Sequence[tuple[bool, str, str]]) -> list[str]:
    """One content may have several names: it moves into the cache once."""
    moved: set[str] = set()
    out = []
    for new, sha256, name in lines:
        out.append(f"{'new' if new and sha256 not in moved else 'old'} {sha256} {name}")
        moved.add(sha256)
    return out


def _is_cached(place: str) -> bool:
    return place.startswith("cache/") and not place.startswith("cache/.")


def _hash_s(wanted: dict[str, Entry]) -> float:
    """Time a slow (emulated) processor may take to hash all this, at 5 MB/s."""
    return sum(entry.size_bytes for entry in wanted.values()) / 5e6


def _lines(items: Sequence[str] | dict[str, Entry] | list[str]) -> bytes:
    return "".join(f"{item}\n" for item in items).encode()


def _because(cause: str) -> str:
    return f" ({cause})" if cause else ""


def _after_retries(error: DeviceError, attempt: int) -> str:
    return f"{_bare(error)} (tried {attempt + 1} times)" if attempt else _bare(error)


def _bare(error: DeviceError) -> str:
    return error.message.removeprefix(f"{error.device}: ")
