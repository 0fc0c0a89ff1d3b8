"""What `edgekit package` says: what was chosen, what was traded, what it weighs, what to do next."""

from __future__ import annotations

import shlex
from typing import Any

from edgekit.cli import output
from edgekit.manifest import Manifest
from edgekit.opset import Verdict
from edgekit.packager import Outcome
from edgekit.planner import Plan, Point
from edgekit.report.wording import size
from edgekit.target import Target
from edgekit.transports import virtual
from edgekit.virtual.cortex_m.boards import EMULATED

_WORST = 10


def document(outcome: Outcome) -> dict[str, Any]:
    """The outcome as one JSON document."""
    return {
        "passed": outcome.passed,
        "bundle": str(outcome.bundle) if outcome.bundle else None,
        "unchanged": outcome.unchanged,
        "findings": outcome.findings,
        "manifest": outcome.manifest,
    }


def show(outcome: Outcome) -> None:
    """Print the outcome for a person: data to stdout, talk to stderr."""
    manifest = outcome.manifest
    output.say(_title(outcome), bold=True)
    output.table(_candidates(manifest.plan), right=range(1, 6))
    output.table(_usage(manifest), right=(1, 2))
    for line in _placement(manifest):
        output.say(f"  {line}")
    for row in manifest.sensitivity[:_WORST]:
        output.say(f"  sensitive   {row.operator}: {row.loss_db:.2f} dB ({row.reason})")
    for notice in manifest.notices:
        output.say(f"note: {notice}", err=True)
    for finding in outcome.findings:
        output.say(f"{finding.severity}: {finding.message}", err=True)
        if finding.hint:
            output.say(f"hint: {finding.hint}", err=True)
    if outcome.bundle:
        output.say(str(outcome.bundle))
        output.say(f"next: edgekit test {shlex.quote(str(outcome.bundle))} --device {_device(manifest)}", err=True)


def _title(outcome: Outcome) -> str:
    manifest = outcome.manifest
    state = "UNCHANGED" if outcome.unchanged else "PACKAGED" if outcome.passed else "OUT OF BOUNDS"
    route = f" ({', '.join(manifest.source.route)})" if manifest.source.route else ""
    return f"{state}  {manifest.source.name} for {manifest.target.name}: {manifest.artifact.precision}, {size(manifest.usage.model_bytes)}{route}"


def _candidates(plan: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("precision", "model", "total", "SQNR", "top-1", "MACs accelerated", "")]
    rows += [_point(point, chosen=number == plan.chosen) for number, point in enumerate(plan.points)]
    return rows + [(precision, *[""] * 5, reason) for precision, reason in plan.skipped.items()]


def _point(point: Point, *, chosen: bool) -> tuple[str, ...]:
    if point.failed:
        return (point.candidate.precision, *[""] * 5, f"cannot be built: {point.failed}")
    sqnr = "exact" if point.sqnr_db is None else f"{point.sqnr_db:.1f} dB"
    top1 = "" if point.top1 is None else f"{point.top1:.1%}"
    remark = "chosen" if chosen else "; ".join(point.excess)
    sizes = (f"{point.model_bytes / 1e6:.2f} MB", f"{point.total_bytes / 1e6:.2f} MB")
    kept = len(point.candidate.keep_float)
    return (point.candidate.precision + (f", {kept} operators float" if kept else ""), *sizes, sqnr, top1, f"{point.accelerated:.0%}", remark)


def _usage(manifest: Manifest) -> list[tuple[str, ...]]:
    used = manifest.usage
    rows: list[tuple[str, ...]] = [("part", "installed", "download", "kind")]
    rows += [(part.name, size(part.installed_bytes), size(part.download_bytes), part.kind) for part in used.parts]
    rows.append(("total", size(used.total_bytes("installed")), size(used.total_bytes("download")), ""))
    return rows + ([("memory at run time", size(used.sram_bytes), "", used.kind(arena=True))] if used.sram_bytes else [])


def _placement(manifest: Manifest) -> list[str]:
    lines = []
    for delegate in manifest.target.delegates:
        verdicts = [v for v in manifest.verdicts if v.delegate == delegate]
        taken = sum(v.status == "accelerated" for v in verdicts)
        lines.append(f"{delegate:<10}  {taken} of {len(verdicts)} operators accelerated{_left(verdicts)}")
    return lines


def _left(verdicts: list[Verdict]) -> str:
    left: dict[str, int] = {}
    for verdict in verdicts:
        if verdict.status != "accelerated":
            left[verdict.type] = left.get(verdict.type, 0) + 1
    return f"; not: {', '.join(f'{count} {kind}' for kind, count in sorted(left.items()))}" if left else ""


def _core(target: Target) -> str:
    if "npu" in target.options:
        return "serial:PORT"
    core = target.options.get("core", "")
    core = EMULATED.get(core, core)
    return f"virtual:{core}" if core in virtual.DEVICES else "local:"


def _device(manifest: Manifest) -> str:
    target = manifest.target
    simulated = {"onnxruntime-qnn": f"virtual:{target.name}", "dpu": "virtual:dpu", "coreml": "virtual:coreml"}.get(target.runtime.name)
    if simulated or target.os == "none":
        return simulated or _core(target)
    return {"android": "virtual:android-arm64  # or adb: for the phone on the cable", "linux": "ssh:USER@HOST"}.get(target.os, "local:")
