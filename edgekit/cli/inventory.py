"""`edgekit targets`, `devices`, `farm`, `tools`, `doctor`: list, explain, manage, diagnose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgekit.cli import options, output

if TYPE_CHECKING:
    from edgekit.target import Target


@click.command(short_help="List target profiles, or explain one.")
@click.argument("name", required=False)
@options.json_option
def targets(name: str | None, json_to: str | None) -> int:
    """List the target profiles, or explain the profile NAME (or a ./profile.toml)."""
    from edgekit import target

    profiles = [target.load(name)] if name else [target.read(path) for path in target.paths().values()]
    if json_to:
        output.write_json(profiles[0] if name else profiles, json_to)
        return 0
    width = max(len(profile.name) for profile in profiles)
    for profile in profiles:
        click.echo(f"{profile.name:<{width}}  {profile.summary}")
        if name:
            _explain(profile)
    return 0


def _explain(profile: Target) -> None:
    click.echo(f"  runtime     {profile.runtime.name} on {profile.runtime.platform}")
    click.echo(f"  precisions  {', '.join(profile.precisions)}")
    click.echo(f"  delegates   {', '.join(profile.delegates) or '-'}")
    for precision, tolerance in profile.tolerance.quantization.items():
        bounds = [f"at least {tolerance.min_sqnr_db:g} dB"] if tolerance.min_sqnr_db is not None else []
        bounds += [f"top-1 at least {tolerance.min_top1:.0%}"] if tolerance.min_top1 is not None else []
        click.echo(f"  tolerance   {precision}: {', '.join(bounds) or '-'}")
    for note in profile.notes:
        click.echo(f"  note        {note}")


_EXAMPLES_DEVICES = options.examples(
    "edgekit devices install virtual:android-arm64      # once",
    "edgekit devices start virtual:android-arm64        # then: adb connect HOST:PORT",
    "edgekit devices stop --all",
)


@click.group(invoke_without_command=True, epilog=_EXAMPLES_DEVICES, short_help="List devices; install, start and stop virtual ones.")
@options.farm
@options.json_option
@click.pass_context
def devices(context: click.Context, farm_file: Path | None, json_to: str | None) -> None:
    """List virtual devices and what they lack here, running and attached devices, known device models, and the units of a farm file."""
    if context.invoked_subcommand is None:
        from edgekit.cli import devices_view

        devices_view.listing(farm_file, json_to)


@devices.command()
@click.argument("device")
def install(device: str) -> int:
    """Fetch what a virtual DEVICE needs (its system image), once."""
    from edgekit.cli import devices_view

    return devices_view.install(device)


@devices.command()
@click.argument("device")
@click.option("--count", default=1, show_default=True, type=options.Whole(1, 64), metavar="N", help="How many to start.")
@click.option("--port", type=options.Whole(1, 65535), metavar="N", help="TCP port of the first; default: any free one.")
def start(device: str, count: int, port: int | None) -> int:
    """Start virtual devices that the real adb lists, and print their addresses."""
    from edgekit.cli import devices_view

    return devices_view.start(device, count, port)


@devices.command()
@click.argument("serial", required=False)
@click.option("--all", "everything", is_flag=True, help="Stop all that were started so.")
def stop(serial: str | None, everything: bool) -> int:
    """Stop a virtual device by SERIAL, or all that 'devices start' started."""
    from edgekit.cli import devices_view

    return devices_view.stop(serial, everything)


@devices.command()
@click.argument("device")
@options.farm
def clear(device: str, farm_file: Path | None) -> int:
    """Remove what edgekit keeps on DEVICE (a unit or address): its cache of runtimes and models."""
    from edgekit.cli import devices_view

    return devices_view.clear(device, farm_file)


@click.command(short_help="Show the units of a farm file and who holds them.")
@click.argument("file", type=click.Path(path_type=Path))
@options.json_option
def farm(file: Path, json_to: str | None) -> int:
    """Show the units of a farm FILE, and who holds a lease on each."""
    from edgekit.cli import devices_view

    return devices_view.farm(file, json_to)


@click.group(
    invoke_without_command=True,
    epilog=options.examples("edgekit tools install runtime:litert-linux-aarch64"),
    short_help="List and install isolated tools and runtimes.",
)
@click.pass_context
def tools(context: click.Context) -> None:
    """List the isolated tools and runtime libraries that edgekit can install."""
    if context.invoked_subcommand is None:
        from edgekit.cli import tools_view

        tools_view.listing()


@tools.command("install")
@click.argument("name")
def tools_install(name: str) -> int:
    """Install the tool NAME (as 'edgekit tools' lists it) into edgekit's own folder."""
    from edgekit.cli import tools_view

    return tools_view.install(name)


@click.command(short_help="Diagnose this environment.")
@options.json_option
def doctor(json_to: str | None) -> int:
    """Say what is installed, what is missing for which job, and the one command that helps."""
    from edgekit.cli import tools_view

    return tools_view.doctor(json_to)
