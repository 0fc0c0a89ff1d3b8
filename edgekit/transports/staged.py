"""A run on a device that has a POSIX shell and can carry files: prepare, push, verify, run, pull, clean up; over adb and ssh alike."""

from __future__ import annotations

import hashlib
import signal
import uuid
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from edgekit.errors import DeviceError, RunnerError
from edgekit.job import RESULT_FILE
from edgekit.transports import folders, scripts
from edgekit.transports.failures import DEAD, Policy, Retry, failure, last_line, reason_of
from edgekit.transports.folders import Entry, Remote
from edgekit.transports.scripts import Prepared

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
        prepared = _prepare(carrier, entries, run)
        litter = scripts.stale(prepared.others, _active, carrier.policy.stale_s)
        grown = _deliver(carrier, entries, run, prepared.cached)
        _fetch(carrier, run, _run(carrier, run, timeout_s), result)
    except DeviceError as error:
        _clean_after(carrier, error, (run, *litter))
        raise
    except BaseException:
        _clean_quietly(carrier, (run, *litter))
        raise
    else:
        _clean_quietly(carrier, (run, *litter), grown)
    finally:
        _active.discard(run)


def _prepare(carrier: Carrier, entries: Sequence[Entry], run: str) -> Prepared:
    parents = sorted({Path(entry.name).parent.as_posix() for entry in entries} - {"."})
    hashes = sorted({entry.sha256 for entry in entries if _is_large(entry)})
    return scripts.read_prepared(_shell(carrier, "push", scripts.prepare(carrier.base, run), scripts.wants(parents, hashes)), run)


def _deliver(carrier: Carrier, entries: Sequence[Entry], run: str, cached: AbstractSet[str]) -> bool:
    """Bring every file to the run folder, verified by its hash there; whether the cache has grown. A rotten cache entry is replaced."""
    carrier.push([_upload(entry, run) for entry in entries if entry.sha256 not in cached])
    wrong = _assemble(carrier, entries, run, cached)
    rotten = [entry for entry in wrong if entry.sha256 in cached]
    if rotten and len(rotten) == len(wrong):
        carrier.push([_upload(entry, run) for entry in rotten])
        cached = cached - {entry.sha256 for entry in rotten}
        wrong = _assemble(carrier, entries, run, cached)
    if wrong:
        raise failure(carrier.device, "corrupt", f"{wrong[0].name} arrived with other bytes than were sent")
    return any(_is_large(entry) and entry.sha256 not in cached for entry in entries)


def _assemble(carrier: Carrier, entries: Sequence[Entry], run: str, cached: AbstractSet[str]) -> list[Entry]:
    """Make the run folder of what lies on the device. Returns the files with other bytes than they should have; then there is no folder yet."""
    script = scripts.assemble(carrier.base, run, [entry.name for entry in entries if entry.executable])
    lines = [f"{_kind(entry, cached)} {entry.sha256} {entry.name}" for entry in entries]
    done = carrier.shell(script, _lines(lines), carrier.policy.stall_s + _hash_s(entries))
    if done.code == scripts.NOT_AS_SENT:
        hashes = scripts.read_hashes(done.stdout)
        return [entry for entry in entries if hashes.get(entry.name) != entry.sha256]
    if done.code == 127:
        raise failure(carrier.device, "unsupported", "there is no sha256sum on the device", "Android 8 or later has one, and so has busybox")
    _checked(carrier, "push", done, run)
    return []


def _run(carrier: Carrier, run: str, timeout_s: float) -> tuple[Remote, ...]:
    """Run the runner. Returns the files it left, `result.json` among them; it leaves them when it fails, too."""
    try:
        done = carrier.shell(scripts.start(carrier.base, run), b"", timeout_s)
    except DeviceError as error:
        if error.reason == "hung":
            raise failure(carrier.device, "hung", f"the run did not end within {timeout_s:g} s", "raise --timeout, or use a smaller model") from error
        raise
    files = folders.listing(done.stdout)
    if done.code and not files:
        files = folders.listing(carrier.shell(scripts.list_results(carrier.base, run), b"", carrier.policy.stall_s).stdout)
    if any(file.name == RESULT_FILE for file in files):
        return files
    if done.code == 0:
        raise RunnerError(f"the runner on {carrier.device} ended well but wrote no {RESULT_FILE}", stage="output")
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


def _fetch(carrier: Carrier, run: str, files: Sequence[Remote], result: Path) -> None:
    with folders.received(result) as part:
        for file in files:
            (part / file.name).parent.mkdir(parents=True, exist_ok=True)
        carrier.pull(f"run-{run}/result", [file.name for file in files], part, carrier.policy.result_bytes)
        for file in files:
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


def _clean_quietly(carrier: Carrier, runs: Sequence[str], grown: bool = True) -> None:
    """Clean up after the outcome is known, which a link that fails now cannot change; it is noted, and the next run removes the rest."""
    try:
        _clean(carrier, runs, carrier.policy.stall_s, grown)
    except DeviceError as error:
        carrier.retries.append(Retry("clean", error.reason, error.message))


def _clean(carrier: Carrier, runs: Sequence[str], timeout_s: float, grown: bool = True) -> None:
    """Remove run folders, and where the cache has grown what is too much in it."""
    done = carrier.shell(scripts.clean(carrier.base, runs, sizes=grown), b"", timeout_s)
    if done.code:
        raise failure(carrier.device, reason_of(done.stderr), f"the run folder could not be removed: {last_line(done.stderr)}")
    surplus = scripts.evictable(done.stdout, carrier.policy.cache_bytes)
    if surplus:
        _shell(carrier, "clean", scripts.evict(carrier.base), _lines(surplus))


def _shell(carrier: Carrier, stage: str, script: str, stdin: bytes = b"") -> str:
    """Run one of the scripts; what it complains of becomes the error."""
    return _checked(carrier, stage, carrier.shell(script, stdin, carrier.policy.stall_s))


def _checked(carrier: Carrier, stage: str, done: Completed, run: str = "") -> str:
    if done.code == scripts.NOT_EXECUTABLE:
        cause = scripts.explain(carrier.shell(scripts.diagnose(carrier.base, run), b"", carrier.policy.stall_s).stdout)
        raise failure(carrier.device, "permission-denied", f"the pushed runner cannot be made executable{_because(cause)}")
    if done.code:
        said = last_line(done.stderr)
        raise failure(carrier.device, reason_of(done.stderr), f"{stage} failed with exit code {done.code}: {said}")
    return done.stdout


def _upload(entry: Entry, run: str) -> Upload:
    return Upload(entry.path, f"run-{run}.part/job/{entry.name}", 0o755 if entry.executable else 0o644)


def _is_large(entry: Entry) -> bool:
    return entry.size_bytes >= CACHED_FROM_BYTES


def _kind(entry: Entry, cached: AbstractSet[str]) -> str:
    if not _is_large(entry):
        return "small"
    return "cached" if entry.sha256 in cached else "new"


def _hash_s(entries: Sequence[Entry]) -> float:
    """Time a slow (emulated) processor may take to hash all this, at 5 MB/s."""
    return sum(entry.size_bytes for entry in entries) / 5e6


def _lines(items: Sequence[str]) -> bytes:
    return "".join(f"{item}\n" for item in items).encode()


def _because(cause: str) -> str:
    return f" ({cause})" if cause else ""


def _after_retries(error: DeviceError, attempt: int) -> str:
    return f"{_bare(error)} (tried {attempt + 1} times)" if attempt else _bare(error)


def _bare(error: DeviceError) -> str:
    return error.message.removeprefix(f"{error.device}: ")
