"""What `edgekit devices` and `edgekit farm` print and do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgekit import device
from edgekit import farm as farms
from edgekit.cli import output
from edgekit.device import Unit
from edgekit.errors import EdgekitError, UsageError, close_match
from edgekit.transports import adb_server, staged, virtual
from edgekit.transports.adb import AdbLink
from edgekit.transports.adb_server import AdbOptions
from edgekit.transports.ssh import SshLink
from edgekit.virtual import android

ANDROID = "virtual:android-arm64"


class Attached(msgspec.Struct, frozen=True):
    """A device that is plugged in or connected now, by the address that reaches it, in the state that its adb server gives."""

    address: str
    state: str


def listing(farm_file: Path | None, json_to: str | None) -> None:
    """Print virtual devices, attached ones, known device models and the farm's units."""
    units = _units(farm_file)
    running, attached = android.running(), _attached()
    known = [device_model for device_model in device.models().values() if not device_model.virtual]
    possible = [(entry, virtual.missing(entry.name)) for entry in virtual.DEVICES.values()]
    if json_to:
        rows = [{"address": entry.address, "summary": entry.summary, "missing": lacks} for entry, lacks in possible]
        document = {"virtual": rows, "running": running, "attached": attached, "models": known, "units": list(units.values())}
        output.write_json(document, json_to)
        return
    _section("virtual devices", [(entry.address, entry.summary, _readiness(lacks)) for entry, lacks in possible])
    _section("running virtual devices", [(f"adb:{phone.address}", phone.serial, _whose(phone)) for phone in running])
    _section("attached devices", [(found.address, found.state, "") for found in attached])
    _section("device models", [(model.name, model.summary, ", ".join(model.targets)) for model in known])
    _section("units", [(unit.name, unit.address, ", ".join(unit.labels)) for unit in units.values()])


def _section(title: str, rows: Sequence[tuple[str, str, str]]) -> None:
    output.say(title if rows else f"{title}: none")
    first, second = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    for row in rows:
        output.say(f"  {row[0]:<{first}}  {row[1]:<{second}}  {row[2]}".rstrip())


def _whose(phone: android.RunningDevice) -> str:
    return f"pid {phone.pid}" if phone.lasting else f"pid {phone.pid}, of a test that runs now"


def _readiness(lacks: tuple[str, ...]) -> str:
    return f"lacks {'; '.join(lacks)}" if lacks else "ready"


def _attached() -> list[Attached]:
    """What a running adb server lists."""
    try:
        found = adb_server.attached(AdbOptions(stall_s=5.0))
    except EdgekitError as error:
        output.say(f"what adb lists cannot be told: {error.message}", err=True)
        return []
    return [Attached(f"adb:{serial}", state) for serial, state in found.items()]


def install(name: str) -> int:
    """Fetch the userland of the virtual Android device; for the others, say what they lack here."""
    entry = virtual.DEVICES.get(name.removeprefix("virtual:"))
    if name != ANDROID and entry:
        output.say(f"{name}: {_readiness(virtual.missing(entry.name))}", err=True)
        return 0
    _check_virtual(name)
    with output.progress() as report:
        report(0, 0, "fetching the arm64 userland")
        android.install()
    output.say(f"{name} is ready", err=True)
    return 0


def start(name: str, count: int, port: int | None) -> int:
    """Start virtual devices that outlive this command; their addresses go to stdout."""
    _check_virtual(name)
    for number in range(count):
        options = android.DeviceOptions(port=port + number if port else 0, dies_with_parent=False)
        phone = android.start(options)
        output.say(f"{phone.address}  {phone.serial}")
    output.say("reach them with 'adb connect HOST:PORT' or --device adb:HOST:PORT; end them with 'edgekit devices stop --all'", err=True)
    return 0


def stop(serial: str | None, everything: bool) -> int:
    """Stop one virtual device, or all that `start` started: the others belong to tests that run now.

    Raises `UsageError` when none is named, `DeviceError` when it does not run.
    """
    serials = [phone.serial for phone in android.running() if phone.lasting] if everything else [serial]
    for name in serials:
        if name is None:
            raise UsageError("which device?", "give a serial ('edgekit devices' lists them) or --all")
        android.stop(name)
        output.say(f"stopped {name}", err=True)
    return 0


def clear(text: str, farm_file: Path | None) -> int:
    """Remove edgekit's cache from devices that keep one. Raises `UsageError` for one that keeps nothing."""
    for unit in device.select(text, _units(farm_file)):
        with farms.session(unit) as link:
            if not isinstance(link, AdbLink | SshLink):
                raise UsageError(f"{unit.name} keeps nothing between tests", "phones (adb:) and boards (ssh:) do")
            staged.clear_cache(link)
        output.say(f"cleared {unit.name}", err=True)
    return 0


def farm(file: Path, json_to: str | None) -> int:
    """Print the units of a farm file and who holds them."""
    rows = [(unit, farms.holders(unit)) for unit in farms.load(file).units.values()]
    if json_to:
        output.write_json([{"unit": unit, "address": unit.address, "holders": holders} for unit, holders in rows], json_to)
        return 0
    width = max((len(unit.name) for unit, _ in rows), default=4)
    for unit, holders in rows:
        held = "; ".join(f"held by process {owner.pid} on {owner.host}" for owner in holders) or "free"
        output.say(f"{unit.name:<{width}}  {unit.address:<28}  {held}")
    return 0


def _units(farm_file: Path | None) -> dict[str, Unit]:
    return farms.in_use(farm_file).units


def _check_virtual(name: str) -> None:
    known = {entry.address for entry in virtual.DEVICES.values()}
    if name not in known:
        raise UsageError(f"there is no virtual device {name!r}", close_match(name, known))
    if name != ANDROID:
        raise UsageError(f"{name} is not a device that runs by itself: each test starts its own", f"use it as edgekit test BUNDLE --device {name}")
