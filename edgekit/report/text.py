"""A report for people, on a terminal or in a log."""

from __future__ import annotations

import click

from edgekit.parity import Finding
from edgekit.report import Comparison, Report, Run, table, wording
from edgekit.report.judging import ratio_text

COLORS = {"passed": "green", "unproven": "yellow", "failed": "red", "not checked": "red"}
SEVERITIES = {"error": "red", "warning": "yellow", "info": None}
WIDE = 80


def render(run: Run, *, width: int = 100, color: bool = False) -> str:
    """The whole run as text of at most `width` columns, with terminal colors only when asked."""
    blocks = ["\n".join(_report(report, width)) for report in run.reports]
    text = "\n\n".join(blocks) + "\n"
    return text if color else click.unstyle(text)


def _report(report: Report, width: int) -> list[str]:
    bundle, device = wording.printable(report.bundle.name), wording.printable(report.device.name)
    verdict = report.verdict.upper()
    first, *rest = table.fold(f"{verdict}  {bundle} on {device}", width)
    lines = [click.style(verdict, fg=COLORS[report.verdict], bold=True) + first.removeprefix(verdict), *rest]
    rows = [("bundle", wording.bundle_line(report.bundle)), ("device", wording.device_line(report.device)), *_facts(report)]
    lines += table.render(rows, width=width)
    for comparison in report.comparisons:
        lines += ["", *table.fold(wording.comparison_title(comparison), width), *_outputs(comparison, width)]
    found = wording.findings(report)
    return lines + [""] * bool(found) + [line for check, finding in found for line in _finding(check, finding, width)]


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


def _outputs(comparison: Comparison, width: int) -> list[str]:
    shown = [i for i, name in enumerate(wording.OUTPUT_COLUMNS) if width >= WIDE or name not in ("cosine", "mean abs", "worst sample")]
    rows = [wording.OUTPUT_COLUMNS, *(wording.output_row(output) for output in comparison.outputs)]
    header, *lines = table.render([[row[i] for i in shown] for row in rows], right=range(1, len(shown)), width=width)
    return [click.style(header, dim=True), *lines]


def _finding(check: str, finding: Finding, width: int) -> list[str]:
    message = f"{finding.severity} [{finding.code}] {wording.printable(finding.message)}  ({wording.printable(check)})"
    first, *rest = table.fold(message, width)
    severity = click.style(finding.severity, fg=SEVERITIES[finding.severity])
    hint = table.fold(f"hint: {wording.printable(finding.hint)}", width - 2) if finding.hint else []
    return [severity + first.removeprefix(finding.severity), *rest, *(click.style(f"  {line}", dim=True) for line in hint)]
