"""Temperatures and clocks over time, written into the device's /sys as a kernel would show them."""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from edgekit.virtual.android.faults import Faults, Story

_PERIOD_S = 0.05


def held(story: Story, at_s: float) -> int:
    """The value of the last point at or before `at_s` (of the first point before the story begins)."""
    index = bisect_right([second for second, _ in story], at_s)
    return story[max(index - 1, 0)][1]


def interpolated(story: Story, at_s: float) -> int:
    """The value at `at_s` on the straight line between the two points around it; the first or last value outside."""
    index = bisect_right([second for second, _ in story], at_s)
    if index in (0, len(story)):
        return held(story, at_s)
    (start, low), (end, high) = story[index - 1], story[index]
    return round(low + (high - low) * (at_s - start) / (end - start))


def follow(faults: Callable[[], Faults], sysfs: Path, nominal_khz: tuple[int, ...], stopping: threading.Event) -> None:
    """Rewrite the temperature and clock files whenever their value changes, until `stopping` is set.

    A story's clock caps every core: a core never shows more than its nominal clock.
    """
    told, since, shown = faults(), time.monotonic(), dict[str, int]()
    while not stopping.is_set():
        now = faults()
        if (now.temperature_mc, now.clock_khz) != (told.temperature_mc, told.clock_khz):
            since = time.monotonic()
        told = now
        for name, value in readings(now, time.monotonic() - since, nominal_khz).items():
            if shown.get(name) != value:
                write_whole(sysfs / name, f"{value}\n")
                shown[name] = value
        stopping.wait(_PERIOD_S)


def readings(faults: Faults, at_s: float, nominal_khz: tuple[int, ...]) -> dict[str, int]:
    """What each file below /sys shows `at_s` seconds into the stories: milli-degrees Celsius and kHz."""
    values = {}
    if faults.temperature_mc:
        temperature = interpolated(faults.temperature_mc, at_s)
        values = {f"class/thermal/thermal_zone{zone}/temp": temperature for zone in (0, 1)}
    cap_khz = held(faults.clock_khz, at_s) if faults.clock_khz else 0
    for core, khz in enumerate(nominal_khz):
        values[f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"] = min(khz, cap_khz) if cap_khz else khz
    return values


def write_whole(path: Path, text: str) -> None:
    """Replace the file in one step, so that a reader never sees a part of it."""
    part = path.with_name(f".{path.name}.part")
    with contextlib.suppress(OSError):  # a full or read-only /sys must not end the story
        part.write_text(text)
        part.replace(path)
