"""What `edgekit devices` and `edgekit farm` print and do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgekit import device
from edgekit import farm as farms
from edgekit.cli import output
from edgekit.errors import UsageError, close_match
from edgekit.virtual import android

ANDROID = "virtual:android-arm64"


def listing(farm_file: Path | None, json_to: str | None) -> None:
    """Print device models, running virtual devices and the farm's units."""
    models = device.models()
    running = android.running()
    units = _units(farm_file)
    if json_to:
        document = {"models": list(models.values()), "running": running, "units": list(units.values())}
        output.write_json(document, json_to)
        return
    width = max(map(len, [*models, *units]), default=10)
    click.echo("device models")
    for model in models.values():
        click.echo(f"  {model.name:<{width}}  {model.address or '-':<24}  {model.summary}")
    click.echo("running virtual devices" if running else "no virtual device is running")
    for phone in running:
        click.echo(f"  {phone.serial:<{width}}  adb:{phone.address:<20}  pid {phone.pid}")
    if units:
        click.echo("units")
    for unit in units.values():
        click.echo(f"  {unit.name:<{width}}  {unit.address:<24}  {', '.join(unit.labels)}")


def install(name: str) -> int:
    """Fetch the userland of a virtual device."""
    _check_virtual(name)
    with output.progress() as report:
        report(0, 0, "fetching the arm64 userland")
        android.install()
    click.echo(f"{name} is ready", err=True)
    return 0


def start(name: str, count: int, port: int | None) -> int:
    """Start virtual devices that outlive this command; their addresses go to stdout."""
    _check_virtual(name)
    for number in range(count):
        options = android.DeviceOptions(port=port + number if port else 0, dies_with_parent=False)
        phone = android.start(options)
        click.echo(f"{phone.address}  {phone.serial}")
    click.echo("reach them with 'adb connect HOST:PORT' or --device adb:HOST:PORT; end them with 'edgekit devices stop --all'", err=True)
    return 0


def stop(serial: str | None, everything: bool) -> int:
    """Stop one virtual device, or all."""
    serials = [phone.serial for phone in android.running()] if everything else [serial]
    for name in serials:
        if name is None:
            raise UsageError("which device?", "give a serial ('edgekit devices' lists them) or --all")
        android.stop(name)
        click.echo(f"stopped {name}", err=True)
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
        click.echo(f"{unit.name:<{width}}  {unit.address:<28}  {held}")
    return 0


def _units(farm_file: Path | None) -> dict[str, Any]:
    path = farm_file or farms.find()
    return farms.load(path).units if path else {}


def _check_virtual(name: str) -> None:
    if name != ANDROID:
        raise UsageError(f"there is no virtual device {name!r} to start", close_match(name, [ANDROID]))
