"""`edgekit test`, `compare` and `drift`: what runs on devices, and what came of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from edgekit.cli import options, output
from edgekit.errors import UsageError


class _Millicelsius(options.Number):
    """Degrees Celsius, in thousandths of one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Of what was typed."""
        return round(float(super().convert(value, param, ctx)) * 1000)


_SECTIONS = {
    "Where": ("devices", "farm_file", "wait_s"),
    "How it runs": ("threads", "affinity", "accelerator", "runtime_library", "timeout_s"),
    "Latency": ("min_runs", "max_seconds", "warmup_runs", "cool_below_millicelsius", "cool_wait_s", "baseline", "effect"),
    "Reports": ("json_to", "junit", "html"),
}

_EXAMPLES_TEST = options.examples(
    "edgekit test net.edgekit --device adb: --runtime litert.aar          # the phone on the cable",
    "edgekit test net.edgekit --device virtual:android-arm64 --runs 0     # no hardware, values alone",
    "edgekit test net.edgekit --device label:phone --junit junit.xml      # all phones of the farm file",
)


@click.command(cls=options.Sectioned, sections=_SECTIONS, epilog=_EXAMPLES_TEST, short_help="Prove a bundle on devices: outputs and latency.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--device", "-d", "devices", multiple=True, required=True, metavar="D", help="Unit of the farm file, label:L, or address; repeatable.")
@options.farm
@click.option("--runs", "min_runs", default=100, show_default=True, type=options.Whole(0), metavar="N", help="Timed runs (0 takes none) ...")
@click.option("--seconds", "max_seconds", default=5.0, show_default=True, type=options.SECONDS, metavar="S", help="... or this long at most.")
@click.option("--warmup", "warmup_runs", default=10, show_default=True, type=options.Whole(0), metavar="N", help="Warm-up runs; fewer once steady.")
@options.threads
@click.option("--affinity", type=click.Choice(["any", "big", "little"]), default="any", show_default=True, help="Cores to run on.")
@options.accelerator
@options.runtime
@click.option(
    "--cool-below",
    "cool_below_millicelsius",
    type=_Millicelsius(-273, 1000),
    metavar="CELSIUS",
    help="Wait until the device is no hotter, at most --cool-wait.",
)
@click.option("--cool-wait", "cool_wait_s", default=60.0, show_default=True, type=options.SECONDS, metavar="S", help="Longest wait for that.")
@click.option("--timeout", "timeout_s", default=600.0, show_default=True, type=options.SOME_SECONDS, metavar="S", help="Longest run on the device.")
@click.option("--wait", "wait_s", default=600.0, show_default=True, type=options.SECONDS, metavar="S", help="How long to wait for a busy unit.")
@click.option("--baseline", type=options.FILE, metavar="FILE", help="Earlier run (--json) to compare latency with.")
@options.effect
@click.option("--junit", type=options.FILE, metavar="FILE", help="Write a JUnit report.")
@click.option("--html", type=options.FILE, metavar="FILE", help="Write a report for people.")
@options.json_option
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


@click.command(
    epilog=options.examples("edgekit compare before.json after.json --effect 3"),
    short_help="Two reports side by side, with a verdict on latency.",
)
@click.argument("before", type=options.FILE)
@click.argument("after", type=options.FILE)
@options.effect
@options.json_option
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


@click.command(
    epilog=options.examples("edgekit drift net.edgekit --device adb: --accelerator gpu"),
    short_help="Find the first operator where a device parts from this machine.",
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--device", "-d", required=True, metavar="D", help="Unit of the farm file, or an address.")
@options.farm
@options.threads
@options.accelerator
@options.runtime
@click.option("--all", "everything", is_flag=True, help="Show every tensor, not those around the first that parts.")
@options.json_option
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
