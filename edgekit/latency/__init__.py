"""What a latency series says, whether it can be trusted, and whether two of them differ.

Every sample is kept. A series that drifts, has two modes, is too short or comes from an emulated device gets the verdict «not comparable» with
the reason, rather than a number that misleads. Intervals cover the noise inside a run, not what differs from one run to the next (heat left
over, memory layout); the smallest effect that counts is there to be larger than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from edgekit.job import Result
from edgekit.latency import series

Outcome = Literal["faster", "slower", "same", "inconclusive", "not comparable"]

SEED = 0
"""Of the bootstrap: the same series gives the same interval."""

PLAUSIBLE_MILLI_CELSIUS = (1_000, 150_000)  # zones that read outside are not wired, or do not count in milli-degrees


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a series cannot be trusted. Shares are of the median; `effect` is the smallest difference that counts."""

    least_samples: int = 20
    effect: float = 0.05
    drift: float = 0.05
    spread: float = 0.3
    warm_up: float = 0.1
    clock_drop: float = 0.1
    rise_celsius: float = 25.0
    hot_celsius: float = 90.0
    confidence: float = 0.99


class Summary(msgspec.Struct, frozen=True):
    """Figures of one series, in ns.

    Percentiles interpolate linearly between order statistics (Hyndman & Fan 1996, type 7). `iqr_ns` is p75 - p25, `mad_ns` the median absolute
    deviation. `interval_ns` is a bootstrap interval of the median at the confidence of the limits, widened by the serial correlation that
    `effective_n` expresses. `drift` is the change from first to last sample as a share of the median (Theil-Sen slope), with `drift_p` the
    p-value of the Mann-Kendall trend test. `modes_ns` are the two centers of a bimodal series and `minor_share` the smaller one's share of
    the samples; empty and 0 otherwise. `start` is the median of the first tenth over that of the rest.
    """

    n: int
    p50_ns: float
    p90_ns: float
    p99_ns: float
    min_ns: int
    max_ns: int
    iqr_ns: float
    mad_ns: float
    interval_ns: tuple[float, float]
    effective_n: float
    drift: float
    drift_p: float
    start: float
    modes_ns: tuple[float, ...] = ()
    minor_share: float = 0.0


class Key(msgspec.Struct, frozen=True):
    """What two series must share to be compared. `device` is the unit's identity."""

    device: str
    os_build: str
    runtime: str
    accelerator: str = "cpu"
    threads: int = 1


class Latency(msgspec.Struct, frozen=True):
    """A measured series with its judgement; empty `reasons` mean that it is comparable."""

    key: Key
    samples_ns: tuple[int, ...]
    warmup_ns: tuple[int, ...]
    summary: Summary
    reasons: tuple[str, ...]
    emulated: bool = False
    runtime_version: str = ""

    @property
    def comparable(self) -> bool:
        """Whether it may be gated and compared."""
        return not self.reasons


class Comparison(msgspec.Struct, frozen=True):
    """Candidate against baseline. `ratio` is candidate median over baseline median, `interval` its bootstrap interval, `p` Mann-Whitney's."""

    outcome: Outcome
    effect: float
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    reasons: tuple[str, ...] = ()


def summarize(samples_ns: Sequence[int], *, limits: Limits | None = None) -> Summary:
    """Figures of a series of at least one sample; the same series gives the same figures. Raises `ValueError` on an empty one."""
    if not samples_ns:
        raise ValueError("a latency series needs at least one sample")
    import numpy as np

    limits = limits or Limits()
    values = np.asarray(samples_ns, np.float64)
    p25, p50, p75, p90, p99 = (float(q) for q in np.percentile(values, (25, 50, 75, 90, 99)))
    effective = series.effective_size(values)
    low, high = series.interval(series.median_draws(values, effective, SEED), limits.confidence)
    slope, p = series.trend(values)
    modes, share = series.two_modes(values)
    head = max(3, len(values) // 10)
    return Summary(
        n=len(values),
        p50_ns=p50,
        p90_ns=p90,
        p99_ns=p99,
        min_ns=int(values.min()),
        max_ns=int(values.max()),
        iqr_ns=p75 - p25,
        mad_ns=float(np.median(np.abs(values - p50))),
        interval_ns=(low, high),
        effective_n=effective,
        drift=slope / p50 if p50 else 0.0,
        drift_p=p,
        start=float(np.median(values[:head]) / max(np.median(values[head:]), 1.0)) if len(values) > 2 * head else 1.0,
        modes_ns=modes,
        minor_share=share,
    )


def measure(result: Result, key: Key, *, emulated: bool, limits: Limits | None = None) -> Latency:
    """Summarize and judge the series of a run. Raises `ValueError` when the run took no latency."""
    limits = limits or Limits()
    summary = summarize(result.latency_ns, limits=limits)
    simulated = ("the device is emulated: its time is not a device's",) if emulated else ()
    reasons = (*simulated, *judge(summary, limits), *judge_conditions(result, limits))
    return Latency(key, result.latency_ns, result.warmup_ns, summary, reasons, emulated, result.runtime_version)


def judge(summary: Summary, limits: Limits | None = None) -> tuple[str, ...]:
    """Why a series is not comparable by its own shape (the first reason that holds); empty when it is."""
    limits = limits or Limits()
    if summary.n < limits.least_samples:
        return (f"too few samples: {summary.n}, at least {limits.least_samples} are needed",)
    if summary.drift_p < 0.01 and abs(summary.drift) > limits.drift:
        return (f"drift: {summary.drift:+.1%} from the first to the last sample (p = {summary.drift_p:.2g}); let the device cool down",)
    if summary.modes_ns and summary.modes_ns[1] > summary.modes_ns[0] * (1 + limits.effect):
        low, high = (_ms(mode) for mode in summary.modes_ns)
        return (f"two modes, {low} and {high} ({summary.minor_share:.0%} in the smaller): cores or clocks change; pin with affinity",)
    if summary.start > 1 + limits.warm_up:
        return (f"not warmed up: the first tenth takes {summary.start:.2f} x the rest; raise the warm-up runs",)
    if summary.iqr_ns > limits.spread * summary.p50_ns:
        return (f"noise: the middle half spans {summary.iqr_ns / summary.p50_ns:.0%} of the median",)
    return ()


def judge_conditions(result: Result, limits: Limits | None = None) -> tuple[str, ...]:
    """Why a series is not comparable by what the device reported of its temperatures and clocks; empty when nothing speaks against it."""
    limits = limits or Limits()
    reasons = []
    low, high = PLAUSIBLE_MILLI_CELSIUS
    for zone, after in sorted(result.temperatures_after.items()):
        before = result.temperatures_before.get(zone, after)
        if not (low <= before <= high and low <= after <= high):
            continue
        if after - before > 1000 * limits.rise_celsius or after > 1000 * limits.hot_celsius:
            reasons.append(f"heat: {zone} went from {before / 1000:.0f} to {after / 1000:.0f} degrees Celsius")
    before_khz, after_khz = (max(clocks.values(), default=0) for clocks in (result.clocks_before, result.clocks_after))
    if after_khz and after_khz < before_khz * (1 - limits.clock_drop):
        reasons.append(f"clock: the fastest core went from {before_khz / 1e6:.2f} to {after_khz / 1e6:.2f} GHz")
    return tuple(reasons)


def compare(baseline: Latency, candidate: Latency, *, limits: Limits | None = None) -> Comparison:
    """Whether the candidate is slower or faster than the baseline by more than the smallest effect that counts.

    `slower` and `faster` need the whole interval of the median ratio beyond the effect, and Mann-Whitney to agree; `same` needs it whole within
    the effect; what lies across is `inconclusive`: take more samples. Series of different devices, OS builds, runtimes, accelerators or thread
    counts, and those that are not comparable by themselves, are refused with the reason.
    """
    limits = limits or Limits()
    reasons = _refusals(baseline, candidate)
    if reasons:
        return Comparison("not comparable", limits.effect, reasons=reasons)
    import numpy as np

    before, after = (np.asarray(side.samples_ns, np.float64) for side in (baseline, candidate))
    sizes = baseline.summary.effective_n, candidate.summary.effective_n
    draws = series.median_draws(after, sizes[1], SEED + 1) / np.maximum(series.median_draws(before, sizes[0], SEED), 1.0)
    low, high = series.interval(draws, limits.confidence)
    p = series.mann_whitney(before, after, sizes)
    ratio = candidate.summary.p50_ns / max(baseline.summary.p50_ns, 1.0)
    outcome = _outcome(low, high, p, limits)
    notes = () if baseline.runtime_version == candidate.runtime_version else (_versions(baseline, candidate),)
    return Comparison(outcome, limits.effect, ratio, (low, high), p, notes)


def _outcome(low: float, high: float, p: float, limits: Limits) -> Outcome:
    slower, faster = 1 + limits.effect, 1 / (1 + limits.effect)
    agreed = p < 1 - limits.confidence
    if low > slower and agreed:
        return "slower"
    if high < faster and agreed:
        return "faster"
    return "same" if faster <= low and high <= slower else "inconclusive"


def _refusals(baseline: Latency, candidate: Latency) -> tuple[str, ...]:
    different = []
    for field in Key.__struct_fields__:
        before, after = getattr(baseline.key, field), getattr(candidate.key, field)
        if before != after:
            different.append(f"another {field.replace('_', ' ')}: {before or 'unknown'} before, {after or 'unknown'} now")
    sides = (("baseline", baseline), ("candidate", candidate))
    return (*different, *(f"{side}: {reason}" for side, latency in sides for reason in latency.reasons))


def _versions(baseline: Latency, candidate: Latency) -> str:
    return f"the runtime's version changed from {baseline.runtime_version or 'unknown'} to {candidate.runtime_version or 'unknown'}"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3g} ms"
