"""The lab's units: the farm file, who may use a unit now (leases), and work spread over many units."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import filelock
import msgspec

from edgekit import device, interruption, places, plugins, target
from edgekit.device import Unit
from edgekit.errors import DeviceError, EdgekitError, UsageError, close_match
from edgekit.transports import Link, foreign

T = TypeVar("T")
DEFAULT_WAIT_S = 600.0
DEFAULT_LIMIT_S = 3600.0
GUARD_S = 30.0
_POLL_S = 0.1


class UnitEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[units.NAME]` table of a farm file."""

    address: str
    labels: tuple[str, ...] = ()
    device: str = ""
    concurrency: int = 1
    options: dict[str, str | int | float | bool] = {}


class FarmFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A farm file: its units by name, and how many of them work at once (0: all)."""

    units: dict[str, dict[str, Any]]
    parallel: int = 0


class Farm(msgspec.Struct, frozen=True):
    """Units by name, and how many of them work at once (0: all)."""

    units: dict[str, Unit] = {}
    parallel: int = 0


class Owner(msgspec.Struct, frozen=True):
    """Who holds a lease, or held it last. Times are seconds since the epoch; after `until` others may take the unit over.

    `generation` counts take-overs.
    """

    pid: int
    host: str
    since: float
    until: float
    command: str
    generation: int = 0
    released: bool = False


def load(path: Path) -> Farm:
    """Read a farm file. Raises `UsageError` with the file and what is wrong in it."""
    try:
        document = target.decode_toml(path, FarmFile)
    except OSError as error:
        raise UsageError(f"{path}: the farm file cannot be read: {error.strerror}", "name another with --farm or EDGEKIT_FARM") from error
    models = device.models()
    return Farm({name: _unit(path, name, table, models) for name, table in document.units.items()}, document.parallel)


def in_use(path: Path | None = None) -> Farm:
    """The farm of `path`, or of the farm file in use where none is named; without one it has no units. Raises as `load`."""
    found = path or places.farm_file()
    return load(found) if found else Farm()


def connect(unit: Unit) -> Link:
    """Connect to a unit by its transport, a third party's with care. Raises `DeviceError`, `UsageError` for an unknown transport or option."""
    transport = plugins.load("edgekit.transports", unit.transport)
    if plugins.is_built_in("edgekit.transports", unit.transport):
        link: Link = transport.connect(unit.place, unit.options)
        return link
    return foreign.connect(unit.transport, transport, unit.place, unit.options)


@contextlib.contextmanager
def session(unit: Unit, wait_s: float = DEFAULT_WAIT_S, limit_s: float = DEFAULT_LIMIT_S) -> Iterator[Link]:
    """Lease a unit, connect, and give both back in the end. Raises as `lease` and `connect`."""
    with lease(unit, wait_s, limit_s):
        link = connect(unit)
        try:
            yield link
        finally:
            link.close()


@contextlib.contextmanager
def lease(unit: Unit, wait_s: float = DEFAULT_WAIT_S, limit_s: float = DEFAULT_LIMIT_S) -> Iterator[Owner]:
    """Hold a unit among all edgekit processes of this user on this machine. It is free again when the holder ends, in whatever way.

    Waits up to `wait_s` for it; others may take it over after `limit_s`. Raises `DeviceError` (`busy`) that says who holds it.
    """
    folder = _lease_folder()
    deadline = time.monotonic() + wait_s
    while (held := _acquire(folder, unit, limit_s)) is None:
        if time.monotonic() >= deadline:
            raise _busy(unit, folder, wait_s)
        interruption.check()
        time.sleep(_POLL_S)
    lock, record, owner = held
    try:
        yield owner
    finally:
        with _guard(folder, unit):
            if _read_owner(record) == owner:
                _write_owner(record, msgspec.structs.replace(owner, released=True))
            lock.release()


def holders(unit: Unit) -> tuple[Owner, ...]:
    """Who holds a unit now."""
    folder = _lease_folder()
    with _guard(folder, unit):
        return tuple(owner for slot, owner in _owners(folder, unit) if _is_held(folder, unit, slot, owner))


def run_many(units: Sequence[Unit], work: Callable[[Unit], T], parallel: int = 0) -> list[T | EdgekitError]:
    """Do `work` for each unit, `parallel` at once (0: all); what edgekit raises for one unit is its result. Results are in the order of `units`."""
    if len(units) == 1:
        return [_guarded(work, units[0])]
    with ThreadPoolExecutor(max_workers=min(parallel or len(units), len(units)) or 1) as pool:
        futures = [pool.submit(_guarded, work, unit) for unit in units]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            with interruption.asked():  # each leaves its device as it found it
                wait(futures)
            raise


def _guarded(work: Callable[[Unit], T], unit: Unit) -> T | EdgekitError:
    try:
        return work(unit)
    except EdgekitError as error:
        return error


def _entry(path: Path, name: str, table: dict[str, Any]) -> UnitEntry:
    known = {field.name for field in msgspec.structs.fields(UnitEntry)}
    for key in table:
        if key not in known:
            raise UsageError(f"{path.name}: unit {name}: unknown key {key!r}", close_match(key, known))
    try:
        return msgspec.convert(table, UnitEntry)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path.name}: unit {name}: {error}", f"its keys are {', '.join(sorted(known))}") from error


def _unit(path: Path, name: str, table: dict[str, Any], models: dict[str, device.DeviceModel]) -> Unit:
    entry = _entry(path, name, table)
    try:
        unit = device.parse(entry.address, name)
    except UsageError as error:
        raise UsageError(f"{path.name}: unit {name}: {error.message}", error.hint) from error
    if entry.device and entry.device not in models:
        raise UsageError(f"{path.name}: unit {name}: unknown device model {entry.device!r}", close_match(entry.device, models))
    if entry.concurrency < 1:
        raise UsageError(f"{path.name}: unit {name}: concurrency {entry.concurrency} is less than 1", "leave it out for one test at a time")
    options: dict[str, Any] = {**unit.options, **entry.options}
    return msgspec.structs.replace(unit, labels=entry.labels, device=entry.device, concurrency=entry.concurrency, options=options)


def _acquire(folder: Path, unit: Unit, limit_s: float) -> tuple[filelock.BaseFileLock, Path, Owner] | None:
    with _guard(folder, unit):
        for slot in range(unit.concurrency):
            record = _record(folder, unit, slot)
            before = _read_owner(record)
            now = time.time()
            # A holder that overstays keeps its own lock file; the next one gets a new file.
            generation = before.generation + (not before.released and now > before.until) if before else 0
            lock = _lock(folder, unit, slot, generation)
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                continue
            owner = Owner(os.getpid(), socket.gethostname(), now, now + limit_s, " ".join(sys.argv)[:200], generation)
            _write_owner(record, owner)
            return lock, record, owner
    return None


def _busy(unit: Unit, folder: Path, wait_s: float) -> DeviceError:
    said = "; ".join(_who(owner) for _, owner in _owners(folder, unit) if not owner.released)
    what = f"{unit.name} is in use by {said or 'another process'}, and was not free within {wait_s:g} s"
    return DeviceError(what, "wait for it, raise --wait, or end that process: the unit is free as soon as it ends", device=unit.name, reason="busy")


def _owners(folder: Path, unit: Unit) -> list[tuple[int, Owner]]:
    found = ((slot, _read_owner(_record(folder, unit, slot))) for slot in range(unit.concurrency))
    return [(slot, owner) for slot, owner in found if owner]


def _who(owner: Owner) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(owner.since))
    return f"process {owner.pid} on {owner.host} since {since} ({owner.command})"


def _lease_folder() -> Path:
    folder = places.state() / "leases"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _key(unit: Unit) -> str:
    digest = hashlib.sha256(unit.address.encode()).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', unit.address)[:40].strip('-')}-{digest}"


@contextlib.contextmanager
def _guard(folder: Path, unit: Unit) -> Iterator[None]:
    """Held for moments only, while a lease is taken or given back. Raises `DeviceError` (`busy`) when another process stands still with it."""
    lock = filelock.FileLock(folder / f"{_key(unit)}.guard")
    try:
        lock.acquire(timeout=GUARD_S)
    except filelock.Timeout as error:
        what = f"{unit.name}: another process has been taking or giving back its lease for {GUARD_S:g} s"
        raise DeviceError(what, f"is one stopped? it holds {lock.lock_file}", device=unit.name, reason="busy") from error
    try:
        yield
    finally:
        lock.release()


def _lock(folder: Path, unit: Unit, slot: int, generation: int) -> filelock.BaseFileLock:
    # Not thread-local: a lease may be given back by another thread than the one that took it.
    return filelock.FileLock(folder / f"{_key(unit)}.{slot}.{generation}.lock", thread_local=False)


def _is_held(folder: Path, unit: Unit, slot: int, owner: Owner) -> bool:
    lock = _lock(folder, unit, slot, owner.generation)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return True
    lock.release()
    return False


def _record(folder: Path, unit: Unit, slot: int) -> Path:
    return folder / f"{_key(unit)}.{slot}.json"


def _read_owner(record: Path) -> Owner | None:
    try:
        return msgspec.json.decode(record.read_bytes(), type=Owner)
    except (OSError, msgspec.DecodeError):
        return None


def _write_owner(record: Path, owner: Owner) -> None:
    part = record.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(owner))
    part.replace(record)
