"""A report for people, on a terminal or in a log."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from edgekit.parity import Finding
from edgekit.report import Comparison, Report, Run, wording
from edgekit.report.judging import ratio_text

if TYPE_CHECKING:
    from rich.console import Console
else:
    Console = Any

STYLES = {"passed": "bold green", "unproven": "bold yellow", "failed": "bold red", "not checked": "bold red"}
SEVERITIES = {"error": "red", "warning": "yellow", "info": "dim"}
WIDE = 80


def render(run: Run, *, width: int = 100, color: bool = False) -> str:
    """The whole run as text of at most `width` columns, with terminal colors only when asked."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream, width=width, force_terminal=color, no_color=not color, highlight=False, markup=False, emoji=False, legacy_windows=False
    )
    for number, report in enumerate(run.reports):
        if number:
            console.print()
        _report(console, report)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _report(console: Console, report: Report) -> None:
    from rich.text import Text

    bundle, device = wording.printable(report.bundle.name), wording.printable(report.device.name)
    console.print(Text.assemble((report.verdict.upper(), STYLES[report.verdict]), f"  {bundle} on {device}"))
    rows = [("bundle", wording.bundle_line(report.bundle)), ("device", wording.device_line(report.device)), *_facts(report)]
    console.print(_pairs(rows))
    for comparison in report.comparisons:
        console.print()
        console.print(wording.comparison_title(comparison))
        console.print(_outputs(comparison, wide=console.width >= WIDE))
    found = wording.findings(report)
    if found:
        console.print()
    for check, finding in found:
        _finding(console, check, finding)


def _facts(report: Report) -> list[tuple[str, str]]:
    rows = []
    if report.latency is not None:
        rows.append(("latency", wording.latency_line(report.latency)))
        if not report.latency.comparable:
            rows.append(("", "not comparable: " + wording.printable("; ".join(report.latency.reasons))))
    if report.baseline is not None:
        rows.append(("baseline", f"{report.baseline.outcome}: {ratio_text(report.baseline)}"))
    if report.placement is not None:
        rows.append(("placement", wording.placement_line(report.placement)))
    conditions = report.conditions
    if conditions is not None:
        version = f"{conditions.runtime} {conditions.runtime_version}".strip()
        how = [version, conditions.accelerator, f"{conditions.threads} threads" if conditions.threads else ""]
        how.append(f"retries {conditions.retries}" if conditions.retries else "")
        rows.append(("run", wording.printable(", ".join(filter(None, how)))))
        if conditions.counters:
            rows.append(("counted", wording.counters_line(conditions.counters)))
        if conditions.load_cold_ns is not None:
            rows.append(("load", f"{wording.duration(conditions.load_cold_ns)} cold"))
        if conditions.peak_memory_bytes is not None:
            rows.append(("memory", f"{wording.size(conditions.peak_memory_bytes)} at most"))
    return rows


def _pairs(rows: list[tuple[str, str]]) -> Any:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 1, 0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _outputs(comparison: Comparison, *, wide: bool) -> Any:
    from rich.table import Table

    shown = [i for i, name in enumerate(wording.OUTPUT_COLUMNS) if wide or name not in ("cosine", "mean abs", "worst sample")]
    table = Table(box=None, padding=(0, 1, 0, 2), header_style="dim")
    for i in shown:
        table.add_column(wording.OUTPUT_COLUMNS[i], justify="left" if i == 0 else "right", overflow="fold")
    for output in comparison.outputs:
        row = wording.output_row(output)
        table.add_row(*(row[i] for i in shown))
    return table


def _finding(console: Console, check: str, finding: Finding) -> None:
    from rich.text import Text

    message = f" [{finding.code}] {wording.printable(finding.message)}"
    console.print(Text.assemble((finding.severity, SEVERITIES[finding.severity]), message, (f"  ({wording.printable(check)})", "dim")))
    if finding.hint:
        console.print(Text(f"  hint: {wording.printable(finding.hint)}", style="dim"))
