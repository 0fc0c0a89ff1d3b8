"""How values read, the same in every renderer. What a device says is untrusted: control characters are shown, never passed on."""

from __future__ import annotations

from edgekit.latency import Latency
from edgekit.parity import Finding, OutputParity
from edgekit.report import BundleFacts, Comparison, DeviceFacts, Placement, Report

AGAINST = {"host": "device against host artifact", "reference": "device against float reference"}
INPUTS = {"samples": "your samples", "random": "random inputs"}


def printable(text: str) -> str:
    """The text with control characters (terminal escapes, what XML forbids) spelled out; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def size(size_bytes: int) -> str:
    """«5.43 MB (5,430,112 B)»; MB is 10^6."""
    return f"{size_bytes / 1e6:.2f} MB ({size_bytes:,} B)"


def duration(ns: float) -> str:
    """Three significant digits in ns, us, ms or s."""
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= factor:
            return f"{ns / factor:.3g} {unit}" if ns < 1000 * factor else f"{ns / factor:.0f} {unit}"
    return f"{ns:.3g} ns"


def figure(value: float | None, digits: str = ".3g") -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else format(value, digits)


def output_row(output: OutputParity) -> tuple[str, ...]:
    """Name, SQNR, cosine, max abs, mean abs, top-1, worst sample."""
    if output.mismatch or output.non_finite:
        state = output.mismatch or f"{output.non_finite} not finite"
        return (printable(output.name), printable(state), "-", "-", "-", "-", "-")
    exact = "identical" if output.identical else "exact" if output.max_abs == 0 else None
    sqnr = exact or ("zero ref." if output.reference_zero else f"{figure(output.sqnr_db, '.1f')} dB")
    worst = "-" if exact else figure(output.worst_sample, "d")
    numbers = figure(output.cosine, ".5f"), figure(output.max_abs), figure(output.mean_abs), figure(output.top1, ".3f")
    return (printable(output.name), sqnr, *numbers, worst)


def counters_line(counters: dict[str, int]) -> str:
    """Instructions first, then bytes by name. Instructions are what a core executed: neither cycles nor time."""
    parts = [f"{count:,} {name} an inference" for name, count in counters.items() if name == "instructions"]
    parts += [f"{name.removesuffix('_bytes').replace('_', ' ')} {count:,} B" for name, count in counters.items() if name.endswith("_bytes")]
    parts += [f"{name} {count:,}" for name, count in counters.items() if name != "instructions" and not name.endswith("_bytes")]
    return printable(", ".join(parts))


OUTPUT_COLUMNS = ("output", "SQNR", "cosine", "max abs", "mean abs", "top-1", "worst sample")


def findings(report: Report) -> list[tuple[str, Finding]]:
    """Every finding with the name of its check, errors first; a failure is one of the check `run`."""
    found = [(check.name, finding) for check in report.checks for finding in check.findings]
    if report.failure is not None:
        found.append(("run", Finding("error", report.failure.kind, report.failure.message, report.failure.hint)))
    return sorted(found, key=lambda pair: ("error", "warning", "info").index(pair[1].severity))


def comparison_title(comparison: Comparison) -> str:
    """«device against host artifact, your samples (4)»."""
    return f"{AGAINST[comparison.against]}, {INPUTS[comparison.inputs]} ({len(comparison.samples)})"


def device_line(device: DeviceFacts) -> str:
    """Model, system and build of a device."""
    parts = [device.model, device.soc, device.os, device.os_build, device.abi, "emulated" if device.emulated else ""]
    return printable(", ".join(filter(None, parts)) or "unknown")


def bundle_line(bundle: BundleFacts) -> str:
    """Precision, sizes and hash of a bundle."""
    total = f", {size(bundle.total_bytes)} with runtime" if bundle.total_bytes is not None else ""
    return printable(f"{bundle.target}, {bundle.precision}, model {size(bundle.model_bytes)}{total}, sha256 {bundle.sha256[:12]}")


def latency_line(latency: Latency) -> str:
    """Percentiles, count and interval, never a lone mean."""
    summary = latency.summary
    low, high = (duration(ns) for ns in summary.interval_ns)
    share = summary.iqr_ns / summary.p50_ns if summary.p50_ns else 0.0
    tail = f"p90 {duration(summary.p90_ns)}  p99 {duration(summary.p99_ns)}  n {summary.n}"
    return f"p50 {duration(summary.p50_ns)} (median in {low} to {high})  {tail}  middle half {share:.1%}"


def placement_line(placement: Placement) -> str:
    """Planned and reported placement."""
    plan = f"planned {placement.planned_nodes} of {placement.total_nodes} on {placement.planned}"
    reported = placement.reported
    if reported is None:
        return printable(f"{plan}; not reported")
    parts = f" in {reported.partitions} parts" if reported.partitions != 1 else ""
    return printable(f"{plan}; reported {reported.nodes} of {reported.total} on {reported.delegate}{parts}")
