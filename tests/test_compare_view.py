"""Two runs side by side: what is paired, and what is shown of a pair."""

from __future__ import annotations

import pytest

from edgekit.cli import compare_view
from edgekit.report import BundleFacts, Conditions, DeviceFacts, Report, Run


def run(target: str, device: str, **counters: int) -> Run:
    conditions = Conditions("micro-c", "1", "0.1", "cortex-m4", 1, counters=counters)
    facts = BundleFacts("net", "ab" * 32, target, "w8a8", 10, 20)
    return Run(edgekit="0.1.0", reports=(Report(bundle=facts, device=DeviceFacts(device, device), conditions=conditions),))


def test_two_ways_to_one_core_are_compared_by_what_they_count(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = run("mcu-cortex-m4-c", "m4", instructions=2000, flash_bytes=10), run("mcu-cortex-m4", "m4", instructions=1000, arena_bytes=5)
    (row,) = compare_view.rows(before, after, 0.05)
    assert row.counted == {"instructions": (2000, 1000)}
    compare_view.show([row])
    assert "2,000 -> 1,000 (-50.0%)" in capsys.readouterr().out


def test_what_counts_nothing_is_paired_by_target_alone() -> None:
    assert not compare_view.rows(run("android-arm64", "phone"), run("android-arm64-gpu", "phone"), 0.05)
    assert len(compare_view.rows(run("android-arm64", "phone"), run("android-arm64", "phone"), 0.05)) == 1
    assert not compare_view.rows(run("mcu-cortex-m4", "m4", instructions=1), run("mcu-cortex-m4", "m55", instructions=1), 0.05)
