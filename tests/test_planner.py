from __future__ import annotations

import pytest

from edgekit import planner, target
from edgekit.planner import Candidate, Point
from edgekit.target import Tolerance

TOLERANCES = {"w8": Tolerance(min_sqnr_db=20.0), "w8a8": Tolerance(min_sqnr_db=20.0, min_top1=0.9)}


def point(
    precision: str, model_bytes: int, sqnr_db: float | None, *, excess: tuple[str, ...] = (), failed: str = "", top1: float | None = None
) -> Point:
    return Point(Candidate(precision), model_bytes, model_bytes + 100, sqnr_db, top1, excess=excess, failed=failed)


def test_the_most_faithful_that_fits_wins() -> None:
    points = [point("fp32", 4000, None, excess=("too big",)), point("w8", 1000, 30.0), point("w8a8", 900, 25.0)]
    plan = planner.choose(points, TOLERANCES, "fidelity")
    assert plan.choice is points[1]


def test_an_exact_point_beats_every_number_of_decibels() -> None:
    points = [point("w8", 1000, 300.0), point("fp32", 4000, None)]
    assert planner.choose(points, {}, "fidelity").choice is points[1]


def test_equal_fidelity_goes_to_the_smaller() -> None:
    points = [point("w8", 1000, 30.0), point("w8-dynamic", 900, 30.0)]
    assert planner.choose(points, {}, "fidelity").choice is points[1]


@pytest.mark.parametrize("prefer", ["fidelity", "size"])
def test_what_another_beats_in_bytes_and_in_fidelity_is_never_chosen(prefer: planner.Prefer) -> None:
    points = [point("fp16", 1000, 25.0), point("w8", 1100, 24.0)]
    tolerances = {"fp16": Tolerance(min_sqnr_db=30.0), "w8": Tolerance(min_sqnr_db=20.0)}
    assert planner.choose(points, tolerances, prefer).choice is points[0]
    assert planner.choose([points[0], point("w8", 900, 24.0)], tolerances, prefer).choice.candidate.precision == "w8"


def test_prefer_size_takes_the_smallest_within_tolerance() -> None:
    points = [point("fp32", 4000, None), point("w8", 1000, 30.0), point("w8a8", 900, 25.0, top1=0.85), point("fp16", 2000, 70.0)]
    assert planner.choose(points, TOLERANCES, "size").choice is points[1]


def test_prefer_size_without_any_within_tolerance_takes_the_most_faithful() -> None:
    points = [point("w8", 1000, 12.0), point("w8a8", 900, 15.0)]
    assert planner.choose(points, TOLERANCES, "size").choice is points[1]


def test_nothing_fits_names_the_nearest() -> None:
    points = [point("fp32", 4000, None, excess=("x",)), point("w8", 1000, 30.0, excess=("x",)), point("w8a8", 0, 0.0, failed="no data")]
    plan = planner.choose(points, TOLERANCES, "fidelity")
    assert plan.choice is None
    assert plan.nearest is points[1]


def test_tiers_leave_out_what_needs_data() -> None:
    profile = target.load("android-arm64")
    tiers, skipped = planner.tiers(profile, profile.precisions, "auto", "bias", calibrated=False)
    assert [[c.precision for c in tier] for tier in tiers] == [["fp32"], ["fp16"], ["w8", "w8-dynamic"]]
    assert all(c.rounding == "bias" for tier in tiers for c in tier)
    assert set(skipped) == {"w8a8", "w8a16"}


def test_one_precision_is_one_candidate() -> None:
    profile = target.load("android-arm64")
    tiers, skipped = planner.tiers(profile, profile.precisions, "w8a8", "nearest", calibrated=False)
    assert tiers == [[Candidate("w8a8", "nearest")]]
    assert skipped == {}


@pytest.mark.parametrize(("prefer", "settled"), [("fidelity", True), ("size", False)])
def test_building_stops_when_fidelity_is_settled(prefer: planner.Prefer, settled: bool) -> None:
    assert planner.settled([point("fp32", 4000, None)], prefer) is settled
    assert not planner.settled([point("fp32", 4000, None, excess=("x",))], prefer)


def test_a_point_off_the_accelerator_waits_for_the_others() -> None:
    slow = Point(Candidate("w8a16"), 1000, 1100, 35.0, accelerated=0.0)
    assert planner.choose([slow, point("w8a8", 900, 25.0)], {}, "fidelity").chosen == 1
    assert planner.choose([slow, point("w8a8", 900, 25.0, excess=("x",))], {}, "fidelity").chosen == 0


def test_a_slow_point_does_not_rule_out_a_larger_one_on_the_accelerator() -> None:
    slow, fast = Point(Candidate("fp16"), 900, 1000, 40.0, accelerated=0.0), Point(Candidate("w8a8"), 1000, 1100, 30.0)
    assert planner.choose([slow, fast], TOLERANCES, "fidelity").choice is fast


def test_a_point_within_tolerance_comes_before_a_better_one_that_its_own_tolerance_refuses() -> None:
    tolerances = {"w8": Tolerance(min_sqnr_db=20.0), "w8-dynamic": Tolerance(min_sqnr_db=15.0)}
    points = [point("w8", 1000, 18.2), point("w8-dynamic", 990, 17.9)]
    assert planner.choose(points, tolerances, "fidelity").chosen == 1


def test_integer_edges_leave_what_computes_in_float_out() -> None:
    profile = target.load("android-arm64")
    made, skipped = planner.tiers(profile, profile.precisions, "auto", "nearest", calibrated=True, integer_edges=True)
    assert {candidate.precision for tier in made for candidate in tier} == {"w8a8", "w8a16"}
    assert "no integers at its edges" in skipped["fp32"]


def test_weights_that_half_precision_holds_are_never_widened() -> None:
    profile = target.load("android-arm64")
    made, skipped = planner.tiers(profile, profile.precisions, "auto", "nearest", calibrated=True, exact_in_half=True)
    assert [candidate.precision for candidate in made[0]] == ["fp16"]
    assert "as they are" in skipped["fp32"]
    made, _ = planner.tiers(profile, profile.precisions, "fp32", "nearest", calibrated=True, exact_in_half=True)
    assert [candidate.precision for candidate in made[0]] == ["fp32"]
