"""Choose how to build: candidates in, measured points out, the best fidelity within every limit. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from edgekit.target import Target, Tolerance

Prefer = Literal["fidelity", "size"]

TIERS: tuple[tuple[str, ...], ...] = (("fp32",), ("fp16",), ("w8", "w8-dynamic", "w8a16", "w8a8", "p8"), ("p6",), ("p4", "w4"))
"""Precisions by fidelity: nothing in a later tier can be better than a point of an earlier one, so building stops at the first that fits."""


class Candidate(msgspec.Struct, frozen=True, omit_defaults=True):
    """One way to build the artifact.

    `rounding` is `nearest`, `bias` or `second-order`. `keep_float` and `wide` name operators left in float, or given 16-bit activations.
    """

    precision: str
    rounding: str = "second-order"
    keep_float: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()


class Point(msgspec.Struct, frozen=True, omit_defaults=True):
    """A candidate after it was built and run here: bytes, and fidelity against the float source on held-out samples (measured).

    `sqnr_db` is that of the worst output, None when every output is exact; `top1` is absent where outputs are no class scores.
    `excess` says which limits it breaks. `failed` is the reason when it could not be built, `hint` what to do. `accelerated` is the
    share of the MACs that the planned delegate takes.
    """

    candidate: Candidate
    model_bytes: int = 0
    total_bytes: int = 0
    sqnr_db: float | None = 0.0
    top1: float | None = None
    accelerated: float = 1.0
    excess: tuple[str, ...] = ()
    failed: str = ""
    hint: str = ""

    @property
    def fidelity_db(self) -> float:
        """SQNR for ordering: infinite when exact."""
        return math.inf if self.sqnr_db is None else self.sqnr_db

    @property
    def fits(self) -> bool:
        """Built, and within every limit on bytes."""
        return not self.excess and not self.failed


class Plan(msgspec.Struct, frozen=True):
    """The measured points and the chosen one (an index into `points`), or none when nothing fits. `skipped` were not built: why."""

    points: tuple[Point, ...]
    chosen: int | None
    prefer: Prefer
    skipped: dict[str, str] = {}

    @property
    def choice(self) -> Point | None:
        """The chosen point."""
        return None if self.chosen is None else self.points[self.chosen]

    @property
    def nearest(self) -> Point | None:
        """The smallest point that could be built: what the nearest plan would cost when nothing fits."""
        built = [point for point in self.points if not point.failed]
        return min(built, key=lambda point: point.total_bytes, default=None)


LEAST_ACCELERATED = 0.5
"""Share of the MACs that the planned delegate must take for a point to compete with those that it takes."""


def tiers(
    target: Target,
    available: Sequence[str],
    precision: str,
    rounding: str,
    *,
    calibrated: bool,
    integer_edges: bool = False,
    exact_in_half: bool = False,
) -> tuple[list[list[Candidate]], dict[str, str]]:
    """Candidates to build, tier by tier, and the precisions left out with the reason.

    `precision` is one name or `auto`; `available` are the backend's precisions. Static integer activations need calibration data, and
    only they give `integer_edges`; where `exact_in_half`, `fp32` is left out. Precisions in the profile's option `on_request` are not for `auto`.
    """
    wanted = [precision] if precision != "auto" else [p for p in target.precisions if p in available]
    reserved = [p for p in wanted if p in target.options.get("on_request", ()) and precision == "auto"]
    wanted = [p for p in wanted if p not in reserved]
    skipped = {p: f"only on request: --precision {p}" for p in reserved}
    skipped |= {p: "needs --calibration data" for p in wanted if not calibrated and precision == "auto" and needs_calibration(p)}
    if exact_in_half and precision == "auto" and "fp16" in wanted:
        skipped |= {"fp32": "fp16 holds the weights as they are"}
    if integer_edges and precision == "auto":
        skipped |= {p: "computes in float, and has no integers at its edges" for p in wanted if not needs_calibration(p)}
    kept = [p for p in wanted if p not in skipped]
    if any(not any(p in tier for tier in TIERS) for p in kept):
        return [[Candidate(p, rounding)] for p in kept], skipped  # precisions of the target's own: its profile orders them
    known = [tier for tier in TIERS if any(p in tier for p in kept)]
    return [[Candidate(p, rounding) for p in kept if p in tier] for tier in known], skipped


def needs_calibration(precision: str) -> bool:
    """Whether activations get static ranges, which only data can give."""
    return "a8" in precision or "a16" in precision or precision == "mixed"


def settled(points: Iterable[Point], prefer: Prefer, tolerances: dict[str, Tolerance] | None = None) -> bool:
    """Whether later tiers need not be built: a point that fits, is within its tolerance and is taken by the planned delegate is there, and
    fidelity is what counts.
    """
    good = [point for point in points if point.fits and point.accelerated >= LEAST_ACCELERATED]
    return prefer == "fidelity" and any(within(point, (tolerances or {}).get(point.candidate.precision)) for point in good)


def choose(points: Sequence[Point], tolerances: dict[str, Tolerance], prefer: Prefer, skipped: dict[str, str] | None = None) -> Plan:
    """The best fidelity among the points that fit (`fidelity`), or the smallest of those within the profile's tolerance (`size`).

    Ties on fidelity go to the smaller one, and what another that fits beats in bytes and in fidelity is never chosen. Points within the profile's
    tolerance come first; when none is, the most faithful that fits is chosen, and the caller judges it. A point that the planned delegate would leave
    to the slow path is chosen only when nothing else fits.
    """
    fitting = [i for i, point in enumerate(points) if point.fits]
    fitting = [i for i in fitting if points[i].accelerated >= LEAST_ACCELERATED] or fitting
    fitting = [i for i in fitting if not any(_beats(points[j], points[i]) for j in fitting)]
    good = [i for i in fitting if within(points[i], tolerances.get(points[i].candidate.precision))]
    if prefer == "size" and good:
        chosen = min(good, key=lambda i: (points[i].model_bytes, -points[i].fidelity_db))
    elif fitting:
        chosen = max(good or fitting, key=lambda i: (points[i].fidelity_db, -points[i].model_bytes))
    else:
        return Plan(tuple(points), None, prefer, skipped or {})
    return Plan(tuple(points), chosen, prefer, skipped or {})


def _beats(one: Point, other: Point) -> bool:
    """Whether `one` is as small and as faithful, better in one of them, and not left to the slow path where `other` is taken."""
    best = (one.model_bytes, -one.fidelity_db), (other.model_bytes, -other.fidelity_db)
    taken = one.accelerated >= min(other.accelerated, LEAST_ACCELERATED)
    return taken and best[0] != best[1] and all(a <= b for a, b in zip(*best, strict=True))


def within(point: Point, tolerance: Tolerance | None) -> bool:
    """Whether a point keeps the fidelity that the profile asks of its precision."""
    if tolerance is None:
        return True
    if tolerance.min_sqnr_db is not None and point.fidelity_db < tolerance.min_sqnr_db:
        return False
    return tolerance.min_top1 is None or point.top1 is None or point.top1 >= tolerance.min_top1
