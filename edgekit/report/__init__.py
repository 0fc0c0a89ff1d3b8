"""The report of testing bundles on devices: values, what follows from them, and their file. Renderers are modules beside this one.

The file is JSON; its schema is published as `docs/report.schema.json`. Figures that are not finite, and absent ones, are null.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from edgekit import latency as latencies
from edgekit.errors import EdgekitError, UsageError
from edgekit.job import Delegation
from edgekit.latency import Latency
from edgekit.parity import Finding, OutputParity
from edgekit.target import Tolerance

SCHEMA = 1

Verdict = Literal["passed", "unproven", "failed", "not checked"]


class BundleFacts(msgspec.Struct, frozen=True):
    """What was tested. `model_bytes` is the artifact, `total_bytes` with runtime and glue, null where it is not known."""

    name: str
    sha256: str
    target: str
    precision: str
    model_bytes: int
    total_bytes: int | None = None


class DeviceFacts(msgspec.Struct, frozen=True):
    """Where it was tested: `name` as the user gave it, the rest as the device said. `emulated` devices prove values, not latency."""

    name: str
    identity: str = ""
    os: str = ""
    os_build: str = ""
    abi: str = ""
    model: str = ""
    soc: str = ""
    emulated: bool = False
    details: dict[str, str] = {}


class Comparison(msgspec.Struct, frozen=True):
    """The device's outputs `against` the host artifact (device loss) or the float reference (whole loss), on the user's samples or random ones."""

    against: Literal["host", "reference"]
    inputs: Literal["samples", "random"]
    samples: tuple[str, ...]
    outputs: tuple[OutputParity, ...]
    tolerance: Tolerance


class Placement(msgspec.Struct, frozen=True):
    """`planned_nodes` of `total_nodes` operators were planned on the accelerator `planned`; `reported` is what the device says, if it can tell.

    The plan is that for the runtime on the device: `newer` says which operators a newer one would have taken as well.
    """

    planned: str
    planned_nodes: int
    total_nodes: int
    reported: Delegation | None = None
    newer: str = ""


class Conditions(msgspec.Struct, frozen=True):
    """How it ran. Temperatures are in milli-degrees Celsius by zone, clocks in kHz by core; `retries` counts repeated transfers and connections."""

    runtime: str = ""
    runtime_version: str = ""
    runner_version: str = ""
    accelerator: str = ""
    threads: int = 0
    affinity: str = ""
    retries: int = 0
    load_cold_ns: int | None = None
    load_warm_ns: int | None = None
    peak_memory_bytes: int | None = None
    temperatures_before: dict[str, int] = {}
    temperatures_after: dict[str, int] = {}
    clocks_before: dict[str, int] = {}
    clocks_after: dict[str, int] = {}
    counters: dict[str, int] = {}


class Check(msgspec.Struct, frozen=True):
    """One thing that was checked, under a stable dotted name, and what was found; it passes without a finding of severity `error`."""

    name: str
    findings: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no finding is an error."""
        return all(finding.severity != "error" for finding in self.findings)


class Failure(msgspec.Struct, frozen=True):
    """Why nothing could be checked. `reason` is the stable word of a device that could not be used: `offline`, `disk-full`, ..."""

    kind: str
    message: str
    hint: str
    exit_code: int
    reason: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One bundle on one device.

    `verdict` follows from the rest: `not checked` (there is a `failure`), `failed` (a check has an error), `unproven` (only random inputs were
    compared), `passed`. `timings_s` are the seconds that each step took here.
    """

    bundle: BundleFacts
    device: DeviceFacts
    comparisons: tuple[Comparison, ...] = ()
    placement: Placement | None = None
    latency: Latency | None = None
    baseline: latencies.Comparison | None = None
    conditions: Conditions | None = None
    checks: tuple[Check, ...] = ()
    failure: Failure | None = None
    timings_s: dict[str, float] = {}
    verdict: Verdict = "not checked"

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "verdict", _verdict(self))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What all checks found."""
        return tuple(finding for check in self.checks for finding in check.findings)

    @property
    def passed(self) -> bool:
        """Whether it was checked and nothing is out of bounds."""
        return self.verdict in ("passed", "unproven")

    @property
    def exit_code(self) -> int:
        """0 passed, 1 out of bounds, else the failure's own."""
        return self.failure.exit_code if self.failure else int(not self.passed)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What one `edgekit test` did: a report for each device."""

    edgekit: str
    reports: tuple[Report, ...]
    schema: int = SCHEMA

    @property
    def exit_code(self) -> int:
        """1 when a report is out of bounds, else the first failure's, else 0."""
        codes = [report.exit_code for report in self.reports]
        return 1 if 1 in codes else next((code for code in codes if code), 0)


def failure(error: EdgekitError) -> Failure:
    """An error as a value, for a report among others that went well."""
    return Failure(type(error).__name__, error.message, error.hint or "", error.exit_code, getattr(error, "reason", ""))


def to_json(run: Run) -> str:
    """The run as a JSON document."""
    return msgspec.json.format(msgspec.json.encode(run), indent=1).decode() + "\n"


def read(path: Path) -> Run:
    """Read a run's file. Raises `UsageError` when it is absent, no report, or of a newer schema."""
    try:
        data = path.read_bytes()
        version = msgspec.json.decode(data, type=_Versioned).schema
        if version > SCHEMA:
            raise UsageError(f"{path}: report schema {version}, this edgekit reads up to {SCHEMA}", "upgrade edgekit")
        return msgspec.json.decode(data, type=Run)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}", "'edgekit test --json FILE' writes one") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a report: {error}", "'edgekit test --json FILE' writes one") from error


def baseline_for(run: Run, key: latencies.Key) -> Latency | None:
    """The latency in an earlier run to compare with: of the same device, else the first of any, which the comparison will refuse with a reason."""
    measured = [report.latency for report in run.reports if report.latency is not None]
    return next((latency for latency in measured if latency.key == key), measured[0] if measured else None)


def json_schema() -> dict[str, Any]:
    """The published schema of a run's file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "edgekit test run", **msgspec.json.schema(Run)}


class _Versioned(msgspec.Struct):
    schema: int


def _verdict(report: Report) -> Verdict:
    if report.failure is not None or not report.checks:
        return "not checked"
    if not all(check.passed for check in report.checks):
        return "failed"
    return "unproven" if any(finding.code == "random-only" for finding in report.findings) else "passed"
