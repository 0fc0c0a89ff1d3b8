"""From figures to findings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgekit.parity.values import Finding, OutputParity, place
from edgekit.target import Tolerance

LEAST_STEPS = 8  # an output that spans fewer quantization steps than this is not excused by «one step»
NEAR_ZERO = 1e-5  # a reference that stays below this is as good as zero: its SQNR measures float rounding of the layers before
ZERO_BOUND = 1e-6  # what a float output may differ from an all-zero reference when the tolerance states no max_abs
OUTLIER_DB = 10.0  # a sample this far below the SQNR bound is named even when the batch passes


def judge(parities: Sequence[OutputParity], tolerance: Tolerance) -> tuple[Finding, ...]:
    """Findings of a comparison; none of severity `error` means that it passes.

    A bound that is met exactly passes. A quantized output that is off by at most one of its own steps passes too, where the reference spans
    at least 8 of them: rounding may differ by that between two right kernels. Non-finite values and mismatches always fail. An all-zero
    reference (or one that stays below 1e-5) is judged by max abs alone: the tolerance's (absolute, as there is no magnitude to relate it to),
    else one step, else 1e-6.
    """
    return tuple(finding for parity in parities for finding in _judge_one(parity, tolerance))


def judge_inputs(kinds: Sequence[str]) -> tuple[Finding, ...]:
    """A warning when nothing but `random` inputs was compared: agreement on noise says little about structured inputs."""
    if any(kind != "random" for kind in kinds):
        return ()
    message = "only random inputs were compared, which proves nothing about real ones"
    return (Finding("warning", "random-only", message, "package with --calibration DATA, so that the bundle holds samples of yours"),)


def _judge_one(parity: OutputParity, tolerance: Tolerance) -> list[Finding]:
    name = parity.name
    if parity.swapped_with:
        message = f"{name}: outputs look swapped: {parity.swapped_with} matches it far better than {name} does"
        return [Finding("error", "outputs-swapped", message, "map the outputs by name, not by position")]
    if parity.mismatch:
        return [Finding("error", "output-mismatch", f"{name}: {parity.mismatch}", "is the artifact on the device the one of the bundle?")]
    if parity.non_finite:
        return [_non_finite_finding(parity)]
    if parity.reference_zero or (parity.peak is not None and parity.peak <= NEAR_ZERO):
        return _judge_zero(parity, tolerance)
    if _within_a_step(parity):
        return _step_note(parity)
    return [*_bounds(parity, tolerance), *_outlier(parity, tolerance), *_top1(parity, tolerance)]


def _non_finite_finding(parity: OutputParity) -> Finding:
    worst = parity.worst
    where = f", first at {place(worst)}: {worst.other} where the reference has {worst.reference}" if worst else ""
    hint = "half precision overflows above 65504: keep the operator that overflows in float32 ('edgekit drift' names it)"
    if worst and worst.reference is not None and not math.isfinite(worst.reference):
        hint = "the source model computes that itself: give --calibration data that it takes, and keep infinities inside the model"
    return Finding("error", "non-finite", f"{parity.name}: {parity.non_finite} element(s) are not finite{where}", hint)


def _judge_zero(parity: OutputParity, tolerance: Tolerance) -> list[Finding]:
    bound = next(value for value in (tolerance.max_abs, parity.step, ZERO_BOUND) if value is not None)
    found = parity.max_abs or 0.0
    state = "all zero" if parity.reference_zero else f"all but zero (at most {parity.peak:.2g})"
    message = f"{parity.name}: the reference is {state}, so only max abs was judged"
    said = Finding("warning", "reference-zero", message, "use samples that make this output speak")
    if found <= bound:
        return [said]
    broken = f"{parity.name}: max abs {found:.4g} against a reference that is {state}, bound {bound:.4g}"
    return [said, Finding("error", "max-abs", broken, _worst_text(parity))]


def _within_a_step(parity: OutputParity) -> bool:
    if parity.step is None or parity.max_abs is None or parity.span is None:
        return False
    rounding = 1 + 1e-4  # dequantized values are float32
    return parity.max_abs <= parity.step * rounding and parity.span >= LEAST_STEPS * parity.step


def _step_note(parity: OutputParity) -> list[Finding]:
    if not parity.max_abs:
        return []
    return [Finding("info", "one-step", f"{parity.name}: differs by at most one quantization step ({parity.max_abs:.4g})")]


def _bounds(parity: OutputParity, tolerance: Tolerance) -> list[Finding]:
    found = []
    hint = _worst_text(parity)
    if tolerance.min_sqnr_db is not None and parity.sqnr_db is not None and parity.sqnr_db < tolerance.min_sqnr_db:
        found.append(Finding("error", "sqnr", f"{parity.name}: SQNR {parity.sqnr_db:.2f} dB, bound {tolerance.min_sqnr_db:g} dB", hint))
    if tolerance.min_cosine is not None and (parity.cosine is None or parity.cosine < tolerance.min_cosine):
        value = "undefined (all zero)" if parity.cosine is None else f"{parity.cosine:.6f}"
        found.append(Finding("error", "cosine", f"{parity.name}: cosine {value}, bound {tolerance.min_cosine:g}", hint))
    if tolerance.max_abs is not None and parity.max_abs is not None:
        bound = tolerance.max_abs * (parity.peak or 0.0) if tolerance.relative else tolerance.max_abs
        if parity.max_abs > bound:
            related = f" ({tolerance.max_abs:g} of the peak {parity.peak:.4g})" if tolerance.relative else ""
            found.append(Finding("error", "max-abs", f"{parity.name}: max abs {parity.max_abs:.4g}, bound {bound:.4g}{related}", hint))
    return found


def _outlier(parity: OutputParity, tolerance: Tolerance) -> list[Finding]:
    bound, worst = tolerance.min_sqnr_db, parity.worst_sqnr_db
    if bound is None or worst is None or parity.sqnr_db is None or parity.sqnr_db < bound or worst >= bound - OUTLIER_DB:
        return []
    batch = f"the batch of {parity.samples} is at {parity.sqnr_db:.1f} dB"
    message = f"{parity.name}: sample {parity.worst_sample} alone is at {worst:.1f} dB while {batch}"
    return [Finding("warning", "sample-outlier", message, "look at this sample: the mean hides it")]


def _top1(parity: OutputParity, tolerance: Tolerance) -> list[Finding]:
    if tolerance.min_top1 is None or parity.top1 is None or parity.top1 >= tolerance.min_top1:
        return []
    message = f"{parity.name}: top-1 agreement {parity.top1:.3f} over {parity.samples} samples, bound {tolerance.min_top1:g}"
    if parity.classes == "guessed":
        return [Finding("warning", "top1", message, "taken for class scores by its shape alone, hence no failure")]
    return [Finding("error", "top1", message, _worst_text(parity))]


def _worst_text(parity: OutputParity) -> str:
    worst = parity.worst
    if worst is None or worst.reference is None or worst.other is None:
        return ""
    return f"worst at {place(worst)}: {worst.other:.6g} where the reference has {worst.reference:.6g}"
