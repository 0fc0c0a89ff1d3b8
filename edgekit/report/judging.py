"""The checks of a report: everything that was compared, judged, under stable names."""

from __future__ import annotations

from collections.abc import Sequence

from edgekit import latency as latencies
from edgekit import parity
from edgekit.latency import Latency
from edgekit.parity import Finding
from edgekit.report import Check, Comparison, Placement


def checks(
    comparisons: Sequence[Comparison],
    placement: Placement | None = None,
    latency: Latency | None = None,
    baseline: latencies.Comparison | None = None,
    stack: tuple[int, int] | None = None,
) -> tuple[Check, ...]:
    """Judge all that is given: `inputs`, `parity.AGAINST.INPUTS.OUTPUT`, `placement`, `latency`, `baseline`, `stack` (bytes used, planned)."""
    found = [Check("inputs", parity.judge_inputs([comparison.inputs for comparison in comparisons]))]
    for comparison in comparisons:
        prefix = f"parity.{comparison.against}.{comparison.inputs}"
        found += [Check(f"{prefix}.{output.name}", parity.judge([output], comparison.tolerance)) for output in comparison.outputs]
    if placement is not None:
        found.append(Check("placement", judge_placement(placement)))
    if latency is not None:
        found.append(Check("latency", judge_latency(latency)))
    if baseline is not None:
        found.append(Check("baseline", judge_baseline(baseline)))
    if stack is not None:
        found.append(Check("stack", judge_stack(*stack)))
    return tuple(found)


def judge_placement(placement: Placement) -> tuple[Finding, ...]:
    """A fallback that the plan did not foresee is an error; a runtime that cannot tell leaves a warning."""
    planned, reported = placement.planned, placement.reported
    plan = f"{placement.planned_nodes} of {placement.total_nodes} operators were planned on {planned}"
    older = (Finding("info", "older-runtime", placement.newer),) if placement.newer else ()
    if not placement.planned_nodes:
        return older
    if reported is None:
        return (Finding("warning", "placement-unknown", f"{plan}; the runtime cannot tell what it did"),)
    hint = "'edgekit inspect BUNDLE' lists the operators with their verdicts"
    if planned.lower() not in reported.delegate.lower() and reported.nodes:
        return (Finding("error", "other-accelerator", f"{plan}, but {reported.nodes} of {reported.total} ran on {reported.delegate}", hint),)
    if reported.nodes < placement.planned_nodes:
        fallback = f"{plan}, but {reported.nodes} of {reported.total} ran there: the rest fell back to the CPU"
        return (*older, Finding("error", "silent-fallback", fallback, hint))
    return older


def judge_stack(used_bytes: int, planned_bytes: int) -> tuple[Finding, ...]:
    """More stack than the bundle planned for is an error: firmware with so much would overwrite other memory."""
    if used_bytes <= planned_bytes:
        return ()
    hint = "reserve more in firmware, and package with a profile whose stack_bytes says so"
    return (Finding("error", "over-stack", f"the stack took {used_bytes:,} bytes, and the bundle plans {planned_bytes:,}", hint),)


def judge_latency(latency: Latency) -> tuple[Finding, ...]:
    """A series that cannot be trusted is said to be so; it fails nothing by itself."""
    severity: parity.Severity = "info" if latency.emulated else "warning"
    return tuple(Finding(severity, "not-comparable", f"latency is not comparable: {reason}") for reason in latency.reasons)


def judge_baseline(comparison: latencies.Comparison) -> tuple[Finding, ...]:
    """Slower than the baseline by more than the effect that counts is an error; no verdict is a warning."""
    if comparison.outcome == "not comparable":
        return tuple(Finding("warning", "not-comparable", f"not compared with the baseline: {reason}") for reason in comparison.reasons)
    text = ratio_text(comparison)
    if comparison.outcome == "slower":
        return (Finding("error", "slower", f"slower than the baseline: {text}"),)
    if comparison.outcome == "inconclusive":
        return (Finding("warning", "inconclusive", f"no verdict against the baseline: {text}", "take more samples"),)
    return tuple(Finding("info", "note", reason) for reason in comparison.reasons)


def ratio_text(comparison: latencies.Comparison) -> str:
    """«median 1.082 x, interval 1.079 to 1.085, smallest effect 5 %»."""
    if comparison.ratio is None or comparison.interval is None:
        return "nothing was compared"
    low, high = comparison.interval
    return f"median {comparison.ratio:.3f} x, interval {low:.3f} to {high:.3f}, smallest effect {comparison.effect:.0%}"
