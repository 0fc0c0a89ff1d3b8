"""Recipe 2: a bundle and a device become a report: outputs against the host artifact and the float reference, placement, latency."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from edgekit import __version__, bundle, device, farm, latency, parity, report, runner, runtimes
from edgekit.bundle import Bundle
from edgekit.device import Unit
from edgekit.errors import EdgekitError, UsageError
from edgekit.latency import Key, Latency
from edgekit.manifest import Manifest
from edgekit.opset import Verdict
from edgekit.progress import Progress, silent
from edgekit.report import BundleFacts, Comparison, Conditions, DeviceFacts, Placement, Report, judging
from edgekit.report import Run as TestRun
from edgekit.runner import Run, RunOptions
from edgekit.target import Tolerance
from edgekit.tensors import Arrays
from edgekit.transports import Facts


@dataclasses.dataclass(frozen=True)
class Options:
    """How to test. `wait_s` is how long to wait for a busy unit, `baseline` an earlier run's file, `effect` the least latency change that counts."""

    run: RunOptions = dataclasses.field(default_factory=RunOptions)
    wait_s: float = farm.DEFAULT_WAIT_S
    baseline: Path | None = None
    effect: float = 0.05
    parallel: int = 0


def test(path: Path, units: Sequence[Unit], options: Options | None = None, progress: Progress = silent) -> TestRun:
    """Verify a bundle on several units at once. What fails for one unit is that unit's report, not an exception.

    Raises `BundleError` or `UsageError` for a bundle or baseline that cannot be read.
    """
    chosen = options or Options()
    with bundle.open(path) as opened:
        before = report.read(chosen.baseline) if chosen.baseline else None
        facts = bundle_facts(opened)

        def work(unit: Unit) -> Report:
            return verify(opened, unit, chosen, before, progress)

        results = farm.run_many(units, work, chosen.parallel)
    reports = [
        Report(bundle=facts, device=DeviceFacts(unit.name), failure=report.failure(result)) if isinstance(result, EdgekitError) else result
        for unit, result in zip(units, results, strict=True)
    ]
    return TestRun(edgekit=__version__, reports=tuple(reports))


def verify(opened: Bundle, unit: Unit, options: Options, before: TestRun | None = None, progress: Progress = silent) -> Report:
    """Verify an open bundle on one unit. Raises `DeviceError` when it could not be used, `RunnerError` when the runner failed there."""
    start = time.monotonic()
    progress(0, 0, f"waiting for {unit.name}")
    with farm.session(unit, options.wait_s) as link:
        connected = time.monotonic()
        facts = link.facts()
        check_device(facts, opened.manifest, unit)
        progress(0, 0, f"running on {unit.name}")
        run = runner.run(opened, link, facts, options.run)
        retries = len(getattr(link, "retries", ()))
    timings = {"connect": connected - start, "run": run.seconds}
    return judge(opened, unit, run, options, before, retries, timings)


def judge(opened: Bundle, unit: Unit, run: Run, options: Options, before: TestRun | None, retries: int, timings_s: dict[str, float]) -> Report:
    """Turn what came back into a report. Pure."""
    manifest = opened.manifest
    comparisons = compare(opened, run.outputs)
    placement = planned_placement(manifest, run)
    measured = _latency(run, options)
    baseline = _against_baseline(before, measured, options) if before and measured else None
    checks = judging.checks(comparisons, placement, measured, baseline, _stack(manifest, run))
    return Report(
        bundle=bundle_facts(opened),
        device=_device_facts(unit, run.facts),
        comparisons=comparisons,
        placement=placement,
        latency=measured,
        baseline=baseline,
        conditions=_conditions(run, retries),
        checks=checks,
        timings_s=timings_s,
    )


def compare(opened: Bundle, outputs: Sequence[Arrays]) -> tuple[Comparison, ...]:
    """Device against host artifact and against the float reference, on the user's samples and on random ones apart."""
    manifest = opened.manifest
    host, reference = runner.golden(opened, "host"), runner.golden(opened, "reference")
    specs, source = manifest.signature.outputs, manifest.source_signature.outputs
    whole = manifest.target.tolerance.quantization.get(manifest.artifact.precision, Tolerance())
    total = len(manifest.golden.samples)
    user = total - manifest.golden.random
    found = []
    parts: tuple[tuple[Literal["samples", "random"], slice], ...] = (("samples", slice(0, user)), ("random", slice(user, total)))
    for kind, part in parts:
        names = manifest.golden.samples[part]
        if not names:
            continue
        device_loss = parity.compare_all(host[part], outputs[part], reference_specs=specs, steps=manifest.artifact.steps)
        found.append(Comparison("host", kind, names, device_loss, manifest.target.tolerance.device))
        whole_loss = parity.compare_all(reference[part], outputs[part], reference_specs=source, other_specs=specs)
        # random inputs of a quantized model leave the calibrated ranges: they prove the device, not the quantization
        found.append(Comparison("reference", kind, names, whole_loss, whole if kind == "samples" or not user else Tolerance()))
    return tuple(found)


def planned_placement(manifest: Manifest, run: Run) -> Placement | None:
    """What the bundle planned on the delegate asked for (else on its first), beside what the device reports; None without delegates."""
    delegates, asked = manifest.target.delegates, run.job.accelerator
    if not delegates or asked == "cpu":
        return None
    planned = next((delegate for delegate in delegates if delegate.endswith(f"_{asked}")), delegates[0])  # ort_xnnpack where xnnpack was asked for
    verdicts = [verdict for verdict in manifest.verdicts if verdict.delegate == planned]
    later = [verdict for verdict in verdicts if verdict.since and (run.runtime_release or (0,)) < runtimes.release(verdict.since)]
    accelerated = sum(verdict.status == "accelerated" for verdict in verdicts) - len(later)
    name = asked if planned.endswith(f"_{asked}") else planned
    return Placement(name, accelerated, len(verdicts), run.result.delegation, _newer(manifest, run, later))


def _newer(manifest: Manifest, run: Run, later: Sequence[Verdict]) -> str:
    if not later:
        return ""
    kinds = ", ".join(sorted({f"{verdict.type} from {verdict.since} on" for verdict in later}))
    has = f"is {'.'.join(map(str, run.runtime_release))}" if run.runtime_release else "does not tell its version"
    return f"{later[0].delegate} takes {kinds}; the {manifest.target.runtime.name} on the device {has}, so {len(later)} of them are not planned there"


def check_device(facts: Facts, manifest: Manifest, unit: Unit) -> None:
    """Refuse a device that cannot run this target's artifact: another CPU architecture, or another chip than it was built for.

    This machine (`local:`) runs portable artifacts of any target in their host runtime. Raises `UsageError`.
    """
    target = manifest.target
    _check_chip(facts, target.name, unit)
    if facts.runner == "python" or not target.abi or not facts.abi:
        return
    if facts.abi not in (target.abi, *_SAME_ABI.get(target.abi, ())):
        raise UsageError(
            f"{manifest.name} was packaged for {target.name} ({target.abi}), but {unit.name} is {facts.abi}",
            "package it for this device ('edgekit targets'), or choose another --device",
        )


def _check_chip(facts: Facts, target: str, unit: Unit) -> None:
    """An artifact built for one generation of an accelerator does not load on another, and says so in a number; a known device is refused before."""
    models = device.models()
    known = device.identify(facts.model, models)
    family = target.partition("-")[0]
    families = {name.partition("-")[0] for model in models.values() for name in model.accelerators}
    if known is None or family not in families or target in known.accelerators:
        return
    has = [name for name in known.accelerators if name.startswith(f"{family}-")]
    hint = f"package it for {has[0]}" if has else "choose another --device, or package it for its processor ('edgekit targets')"
    raise UsageError(f"the bundle was built for {target}, but {unit.name} ({known.summary}) has {', '.join(has) or f'no {family}'}", hint)


_SAME_ABI = {"arm64-v8a": ("aarch64",), "aarch64": ("arm64-v8a",), "x86_64": ("amd64",)}


def bundle_facts(opened: Bundle) -> BundleFacts:
    """What the report says of the bundle."""
    manifest = opened.manifest
    total = manifest.usage.total_bytes("installed")
    return BundleFacts(opened.path.name, opened.sha256, manifest.target.name, manifest.artifact.precision, manifest.usage.model_bytes, total)


def _stack(manifest: Manifest, run: Run) -> tuple[int, int] | None:
    """Bytes of stack that the device measured, and those planned; None where either is unknown."""
    planned = sum(part.installed_bytes for part in manifest.usage.parts if part.name == "stack")
    used = run.result.counters.get("stack_bytes", 0)
    return (used, planned) if used and planned else None


def _latency(run: Run, options: Options) -> Latency | None:
    if not run.result.latency_ns:
        return None
    facts, job = run.facts, run.job
    key = Key(facts.identity, facts.os_build, run.result.runtime or job.runtime, job.accelerator, job.threads)
    return latency.measure(run.result, key, emulated=facts.emulated, limits=latency.Limits(effect=options.effect))


def _against_baseline(before: TestRun, measured: Latency, options: Options) -> latency.Comparison:
    earlier = report.baseline_for(before, measured.key)
    if earlier is None:
        return latency.Comparison("not comparable", options.effect, reasons=("the baseline holds no latency",))
    return latency.compare(earlier, measured, limits=latency.Limits(effect=options.effect))


def _device_facts(unit: Unit, facts: Facts) -> DeviceFacts:
    return DeviceFacts(unit.name, facts.identity, facts.os, facts.os_build, facts.abi, facts.model, facts.soc, facts.emulated, facts.details)


def _conditions(run: Run, retries: int) -> Conditions:
    result, job = run.result, run.job
    return Conditions(
        runtime=result.runtime or job.runtime,
        runtime_version=result.runtime_version,
        runner_version=result.runner_version,
        accelerator=job.accelerator if run.facts.os != "none" else "",  # the core is the device itself
        threads=job.threads,
        affinity=job.affinity,
        retries=retries,
        load_cold_ns=result.load_cold_ns,
        load_warm_ns=result.load_warm_ns,
        peak_memory_bytes=result.peak_memory_bytes,
        temperatures_before=result.temperatures_before,
        temperatures_after=result.temperatures_after,
        clocks_before=result.clocks_before,
        clocks_after=result.clocks_after,
        counters=result.counters,
    )
