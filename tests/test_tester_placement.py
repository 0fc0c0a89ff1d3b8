"""Which plan a device's placement is held against: that of the delegate asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edgekit import target, tester
from edgekit.job import Delegation
from edgekit.opset import Verdict


def placement(target_name: str, accelerator: str) -> Any:
    profile = target.load(target_name)
    verdicts = [Verdict(i, "Conv", "c", d, "accelerated" if i < n else "fallback") for n, d in enumerate(profile.delegates, 1) for i in range(4)]
    manifest = SimpleNamespace(target=profile, verdicts=tuple(verdicts))
    result = SimpleNamespace(delegation=Delegation(accelerator, 4, 4, 1))
    run = SimpleNamespace(runtime_release=(1, 24, 2), job=SimpleNamespace(accelerator=accelerator), result=result)
    return tester.planned_placement(manifest, run)  # type: ignore[arg-type]  # what the function reads of them


@pytest.mark.parametrize(("name", "accelerator", "planned"), [
    ("android-arm64-ort", "xnnpack", ("xnnpack", 2, 4)),
    ("android-arm64-ort", "nnapi", ("nnapi", 3, 4)),
    ("android-arm64", "xnnpack", ("xnnpack", 1, 4)),
    ("hexagon-v75", "qnn", ("hexagon", 1, 4)),
])  # fmt: skip
def test_the_plan_of_the_delegate_asked_for(name: str, accelerator: str, planned: tuple[str, int, int]) -> None:
    found = placement(name, accelerator)
    assert (found.planned, found.planned_nodes, found.total_nodes) == planned


def test_the_processor_itself_needs_no_plan() -> None:
    assert placement("android-arm64-ort", "cpu") is None
