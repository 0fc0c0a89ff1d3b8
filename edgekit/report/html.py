"""A run as one self-contained HTML file: no script, no reference to anything outside."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from edgekit.latency import Latency
from edgekit.parity import Finding
from edgekit.report import Comparison, Report, Run, wording
from edgekit.report.judging import ratio_text

STYLE = """
:root { color-scheme: light dark; --line: #8884; --bad: #c0392b; --good: #218c4a; --mid: #b7791f; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
table { border-collapse: collapse; } th, td { padding: .2rem .8rem .2rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, .facts td { text-align: left; overflow-wrap: anywhere; }
.facts td:first-child { opacity: .7; white-space: nowrap; }
.passed { color: var(--good); } .failed, .not-checked, .error { color: var(--bad); } .unproven, .warning { color: var(--mid); }
ul { padding-left: 1.2rem; } .hint { opacity: .7; } svg { width: 100%; height: auto; border-bottom: 1px solid var(--line); }
"""
PLOT_WIDTH, PLOT_HEIGHT, MOST_DOTS = 800, 160, 1000


def render(run: Run) -> str:
    """The document."""
    title = escape(wording.printable(", ".join(dict.fromkeys(report.bundle.name for report in run.reports))) or "edgekit test")
    body = "\n".join(_report(report) for report in run.reports)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n<p class="hint">edgekit {escape(run.edgekit)}</p></body></html>\n'


def _report(report: Report) -> str:
    name = escape(wording.printable(f"{report.bundle.name} on {report.device.name}"))
    parts = [f'<h1><span class="{report.verdict.replace(" ", "-")}">{report.verdict.upper()}</span> {name}</h1>', _facts(report)]
    found = wording.findings(report)
    if found:
        parts.append(f"<h2>Findings</h2><ul>{''.join(_finding(*pair) for pair in found)}</ul>")
    parts += [_comparison(comparison) for comparison in report.comparisons]
    if report.latency is not None:
        parts.append(f"<h2>Latency</h2><p>{escape(wording.latency_line(report.latency))}</p>{plot(report.latency)}")
    return "\n".join(parts)


def _facts(report: Report) -> str:
    rows = [("bundle", wording.bundle_line(report.bundle)), ("device", wording.device_line(report.device))]
    if report.placement is not None:
        rows.append(("placement", wording.placement_line(report.placement)))
    if report.baseline is not None:
        rows.append(("baseline", f"{report.baseline.outcome}: {ratio_text(report.baseline)}"))
    if report.conditions is not None:
        rows.append(("runtime", wording.printable(f"{report.conditions.runtime} {report.conditions.runtime_version}")))
        rows.append(("retries", str(report.conditions.retries)))
        if report.conditions.counters:
            rows.append(("counted", wording.counters_line(report.conditions.counters)))
    rows += [(step, f"{seconds:.2f} s") for step, seconds in report.timings_s.items()]
    return f'<table class="facts">{"".join(_row(row) for row in rows)}</table>'


def _comparison(comparison: Comparison) -> str:
    rows = "".join(_row(wording.output_row(output)) for output in comparison.outputs)
    return f"<h2>{escape(wording.comparison_title(comparison))}</h2><table>{_row(wording.OUTPUT_COLUMNS, 'th')}{rows}</table>"


def _row(cells: Iterable[str], tag: str = "td") -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _finding(check: str, finding: Finding) -> str:
    hint = f'<br><span class="hint">hint: {escape(wording.printable(finding.hint))}</span>' if finding.hint else ""
    text = escape(wording.printable(f"[{finding.code}] {finding.message} ({check})"))
    return f'<li><b class="{finding.severity}">{finding.severity}</b> {text}{hint}</li>'


def plot(latency: Latency) -> str:
    """Every sample over the run (at most 1000, evenly spaced) as inline SVG, the median as a line; the axis starts at zero."""
    samples = latency.samples_ns
    step = max(1, -(-len(samples) // MOST_DOTS))
    top = max(samples) or 1
    dots = [(i * PLOT_WIDTH / max(1, len(samples) - 1), _height(samples[i], top)) for i in range(0, len(samples), step)]
    circles = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in dots)
    middle = _height(latency.summary.p50_ns, top)
    label = escape(f"{len(samples)} samples, {wording.duration(min(samples))} to {wording.duration(max(samples))}")
    line = f'<line x1="0" x2="{PLOT_WIDTH}" y1="{middle:.1f}" y2="{middle:.1f}" stroke="currentColor" stroke-dasharray="4"/>'
    frame = f'viewBox="-4 -4 {PLOT_WIDTH + 8} {PLOT_HEIGHT + 8}" role="img" aria-label="{label}"'
    return f'<svg {frame}><title>{label}</title><g fill="currentColor" opacity=".5">{circles}</g>{line}</svg>'


def _height(ns: float, top: int) -> float:
    return PLOT_HEIGHT * (1 - ns / top)
