"""What a comparison yields."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "info"]


class Finding(msgspec.Struct, frozen=True):
    """Something a check found. An `error` fails the run; `code` is stable, `message` has the offending values, `hint` says what to do next."""

    severity: Severity
    code: str
    message: str
    hint: str = ""


class Element(msgspec.Struct, frozen=True):
    """One element of an output: sample, index in it, and both real values (null in JSON when not finite)."""

    sample: int
    index: tuple[int, ...]
    reference: float | None
    other: float | None


class OutputParity(msgspec.Struct, frozen=True):
    """How one output of `other` differs from `reference`, over all samples, in real values.

    `mismatch` says why the two cannot be compared at all (missing, shape, dtype, count); every figure is absent then, as it is for non-finite
    values. `sqnr_db` is 10 log10(sum reference^2 / sum error^2), absent when there is no error or the reference is all zero; `cosine` is that of
    the whole batch, absent when either side is all zero. `worst_sample` has the largest error power, `worst_sqnr_db` is that error against the
    mean signal power of the batch (a quiet sample is no outlier). `worst` is the element with the largest error, or the first non-finite one.
    `span` is the reference's maximum less its minimum, `step` one quantization step of `other`. `top1`/`top5` are shares of samples whose best
    class agrees (five best hold the reference's best); `classes` says whether the output holds class scores because the caller or its values
    say so (`yes`), or by its shape alone (`guessed`). `swapped_with` names an output of `other` that matches this reference far better.
    """

    name: str
    samples: int
    mismatch: str = ""
    identical: bool = False
    non_finite: int = 0
    reference_zero: bool = False
    max_abs: float | None = None
    mean_abs: float | None = None
    peak: float | None = None
    span: float | None = None
    step: float | None = None
    sqnr_db: float | None = None
    cosine: float | None = None
    top1: float | None = None
    top5: float | None = None
    classes: Literal["yes", "guessed", "no"] = "no"
    worst: Element | None = None
    worst_sample: int | None = None
    worst_sqnr_db: float | None = None
    swapped_with: str = ""


def place(element: Element) -> str:
    """«sample 3 [0, 17]»."""
    return f"sample {element.sample} [{', '.join(map(str, element.index))}]"
