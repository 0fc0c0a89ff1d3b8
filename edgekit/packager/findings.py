"""What is out of bounds in a packaging: limits on bytes, fidelity, operators that the runtime does not have."""

from __future__ import annotations

from edgekit import budget, parity
from edgekit.budget import boards
from edgekit.manifest import Manifest
from edgekit.packager.job import Built, Job
from edgekit.parity import Finding
from edgekit.target import Tolerance


def judge(job: Job, best: Built, manifest: Manifest) -> tuple[Finding, ...]:
    """What is out of bounds: limits on bytes, fidelity, operators that the runtime does not have."""
    findings = list(parity.judge(best.loss, job.target.tolerance.quantization.get(best.point.candidate.precision, Tolerance())))
    for excess in budget.check(manifest.usage, job.options.limits) if manifest.plan.chosen is None else ():
        findings.append(boards.finding(excess, job.backend.graph(best.artifact), best.point.candidate.precision))
    for verdict in manifest.verdicts:
        if verdict.status == "unsupported" and verdict.delegate == job.target.delegates[0]:
            findings.append(Finding("error", "unsupported-operator", f"{verdict.type} ({verdict.name}): {verdict.reason}", verdict.suggestion))
    return tuple(findings)
