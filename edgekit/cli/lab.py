"""`edgekit test`, `compare` and `drift`: what runs on devices, and what came of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from edgekit.cli import output
from edgekit.errors import UsageError

_file = click.Path(path_type=Path, dir_okay=False)
_existing = click.Path(path_type=Path, exists=True, dir_okay=False)


def _millicelsius(celsius: str | float) -> int:
    return round(float(celsius) * 1000)


def _share(percent: str | float) -> float:
    return float(percent) / 100


_effect = click.option(
    "--effect", default=5.0, show_default=True, type=_share, metavar="PERCENT", help="Smallest latency change that counts."
)


@click.command(short_help="Prove a bundle on devices: outputs and latency.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--device", "-d", "devices", multiple=True, required=True, metavar="D", help="Unit of the farm file, label:L, or address; repeatable.")
@click.option("--farm", "farm_file", type=_file, help="Farm file; default: farm.toml here, or the user's own.")
@click.option("--runs", "min_runs", default=100, show_default=True, type=click.IntRange(0), help="Latency: timed runs (0 takes none) ...")
@click.option("--seconds", "max_seconds", default=5.0, show_default=True, type=click.FloatRange(0), help="... or this long, whichever ends first.")
@click.option("--warmup", "warmup_runs", default=10, show_default=True, type=click.IntRange(0), help="Warm-up runs at most; fewer once steady.")
@click.option("--threads", default=4, show_default=True, type=click.IntRange(1), help="CPU threads.")
@click.option("--affinity", type=click.Choice(["any", "big", "little"]), default="any", show_default=True, help="Cores to run on.")
@click.option("--accelerator", default="", metavar="A", help="Accelerator instead of the target's: cpu, xnnpack, nnapi, gpu, ...")
@click.option("--runtime", "runtime_library", type=_existing, help="Runtime library for the device.")
@click.option(
    "--cool-below", "cool_below_millicelsius", type=_millicelsius, metavar="CELSIUS", help="Wait until the device is no hotter, at most --cool-wait."
)
@click.option("--cool-wait", "cool_wait_s", default=60.0, show_default=True, type=float, metavar="S", help="Longest wait for that.")
@click.option("--timeout", "timeout_s", default=600.0, show_default=True, type=float, metavar="S", help="Longest run on the device.")
@click.option("--wait", "wait_s", default=600.0, show_default=True, type=float, metavar="S", help="How long to wait for a busy unit.")
@click.option("--baseline", type=_file, help="Earlier run (--json) to compare latency with.")
@_effect
@click.option("--junit", type=_file, help="Write a JUnit report.")
@click.option("--html", type=_file, help="Write a report for people.")
@output.json_option
def test(
    bundle: Path, devices: tuple[str, ...], farm_file: Path | None, junit: Path | None, html: Path | None, json_to: str | None, **values: Any
) -> int:
    """Deploy BUNDLE to each device, run it, and compare outputs and latency with the desktop reference."""
    from edgekit import device, farm, tester
    from edgekit.report import to_json
    from edgekit.report.html import render as render_html
    from edgekit.report.junit import render as render_junit
    from edgekit.report.text import render as render_text

    for place in (junit, html, json_to):
        output.check_writable(place)
    lab = farm.in_use(farm_file)
    units = list({unit.name: unit for text in devices for unit in device.select(text, lab.units)}.values())
    with output.progress() as report:
        run = tester.test(bundle, units, _options(values, lab.parallel), report)
    if junit:
        output.write_text(junit, render_junit(run))
    if html:
        output.write_text(html, render_html(run))
    if json_to == "-":
        click.echo(to_json(run), nl=False)
    else:
        if json_to:
            output.write_text(Path(json_to), to_json(run))
        click.echo(render_text(run, width=output.width(), color=sys.stdout.isatty()), nl=False)
    return run.exit_code


@click.command(short_help="Two reports side by side, with a verdict on latency.")
@click.argument("before", type=_file)
@click.argument("after", type=_file)
@_effect
@output.json_option
def compare(before: Path, after: Path, effect: float, json_to: str | None) -> int:
    """Compare the runs BEFORE and AFTER (files that 'edgekit test --json' wrote). Exits 1 when latency got worse by more than --effect."""
    from edgekit import report
    from edgekit.cli import compare_view

    rows = compare_view.rows(report.read(before), report.read(after), effect)
    if not rows:
        raise UsageError("the two runs have no bundle and device in common", "compare runs of one device")
    if json_to:
        output.write_json(rows, json_to)
    if json_to != "-":
        compare_view.show(rows)
    return int(any(row.latency and row.latency.outcome == "slower" for row in rows))


@click.command(short_help="Find the first operator where a device parts from this machine.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--device", "-d", required=True, metavar="D", help="Unit of the farm file, or an address.")
@click.option("--farm", "farm_file", type=_file, help="Farm file.")
@click.option("--threads", default=4, show_default=True, type=click.IntRange(1), help="CPU threads.")
@click.option("--accelerator", default="", metavar="A", help="Accelerator to ask for instead of the target's.")
@click.option("--runtime", "runtime_library", type=_existing, help="Runtime library for the device.")
@click.option("--all", "everything", is_flag=True, help="Show every tensor, not those around the first that parts.")
@output.json_option
def drift(bundle: Path, device: str, farm_file: Path | None, everything: bool, json_to: str | None, **values: Any) -> int:
    """Run BUNDLE's first sample on a device with every intermediate tensor visible: where do the values part, and how does the error grow?"""
    from edgekit import device as devices
    from edgekit import drift as recipe
    from edgekit import farm
    from edgekit.cli import compare_view
    from edgekit.runner import RunOptions

    lab = farm.in_use(farm_file)
    with output.progress() as report:
        found = recipe.locate(bundle, devices.resolve(device, lab.units), RunOptions(**values), report)
    if json_to:
        output.write_json(found, json_to)
    if json_to != "-":
        compare_view.show_drift(found, everything=everything)
    return int(found.first is not None)


def _options(values: dict[str, Any], parallel: int) -> Any:
    """Parameters are called as the fields they fill."""
    from edgekit.runner import RunOptions
    from edgekit.tester import Options

    own = {name: values.pop(name) for name in ("wait_s", "baseline", "effect")}
    return Options(run=RunOptions(**values), parallel=parallel, **own)
