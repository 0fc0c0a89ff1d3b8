"""What `edgekit compare` and `edgekit drift` print."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from edgekit import latency
from edgekit.cli import output
from edgekit.drift import Drift, Step
from edgekit.parity import OutputParity
from edgekit.report import Report, Run
from edgekit.report.judging import ratio_text

_AROUND = 5


class Row(msgspec.Struct, frozen=True):
    """One bundle and device in both runs: SQNR (dB) by output against the float reference, what the device counted (instructions, bytes), each
    before and after, and the verdict on latency.
    """

    bundle: str
    device: str
    sqnr_db: dict[str, tuple[float | None, float | None]]
    latency: latency.Comparison | None
    counted: dict[str, tuple[int, int]] = {}


def rows(before: Run, after: Run, effect: float) -> list[Row]:
    """The pairs of reports on one target and device that both runs hold; where they hold none, those that count on one device: two ways to a core."""
    counting = [[report for report in run.reports if _counters(report)] for run in (before, after)]
    pairs = _paired(before.reports, after.reports, _key) or _paired(counting[0], counting[1], _device)
    return [_row(old, new, effect) for old, new in pairs]


def _paired(before: Sequence[Report], after: Sequence[Report], key: Callable[[Report], object]) -> list[tuple[Report, Report]]:
    earlier = {key(report): report for report in before}
    return [(earlier[key(report)], report) for report in after if key(report) in earlier]


def _counters(report: Report) -> dict[str, int]:
    return report.conditions.counters if report.conditions else {}


def show(found: list[Row]) -> None:
    """Print the rows."""
    for row in found:
        output.say(f"{row.bundle} on {row.device}")
        for name, (old, new) in row.sqnr_db.items():
            output.say(f"  {name:<24} {_db(old)} -> {_db(new)} against the float reference")
        for name, (old_count, new_count) in row.counted.items():
            change = f" ({new_count / old_count - 1:+.1%})" if old_count else ""
            output.say(f"  {name.replace('_', ' '):<24} {old_count:,} -> {new_count:,}{change}")
        if row.latency is None:
            output.say("  latency: one of the runs took none")
        elif row.latency.outcome == "not comparable":
            output.say(f"  latency: not comparable: {'; '.join(row.latency.reasons)}")
        else:
            output.say(f"  latency: {row.latency.outcome}: {ratio_text(row.latency)}")


def show_drift(found: Drift, *, everything: bool) -> None:
    """Print where the values part and how the error grows."""
    output.say(f"{found.bundle} on {found.device}, sample {found.sample}: {len(found.steps)} tensors compared")
    if found.first is None:
        output.say("no operator is out of bounds")
    else:
        step = found.steps[found.first]
        output.say(f"first out of bounds: operator {step.operator} {step.type}, tensor {step.tensor}")
        output.say(f"  {step.parts}")
    start = 0 if everything or found.first is None else max(0, found.first - _AROUND)
    end = len(found.steps) if everything else start + 2 * _AROUND + 1
    for step in found.steps[start:end]:
        output.say(f"  {'!' if step.parts else ' '} {step.operator:>4} {step.type:<24} {_step(step)}  {step.tensor[:60]}")


def _key(report: Report) -> tuple[str, str]:
    return report.bundle.target, _device(report)


def _device(report: Report) -> str:
    return report.device.identity or report.device.name


def _row(old: Report, new: Report, effect: float) -> Row:
    verdict = latency.compare(old.latency, new.latency, limits=latency.Limits(effect=effect)) if old.latency and new.latency else None
    before, after = _outputs(old), _outputs(new)
    figures = {name: (before[name].sqnr_db, after[name].sqnr_db) for name in before if name in after}
    first, second = _counters(old), _counters(new)
    return Row(new.bundle.name, new.device.name, figures, verdict, {name: (first[name], second[name]) for name in first if name in second})


def _outputs(report: Report) -> dict[str, OutputParity]:
    found = next((c for c in report.comparisons if c.against == "reference"), None)
    return {parity.name: parity for parity in found.outputs} if found else {}


def _step(step: Step) -> str:
    if step.parity.identical:
        return "identical       "
    return f"{_db(step.parity.sqnr_db)} max {step.parity.max_abs or 0:.3g}"


def _db(value: float | None) -> str:
    return "  exact  " if value is None else f"{value:6.1f} dB"
