"""Temperatures, clocks, processors and memory of this machine, as far as Linux tells them; empty elsewhere."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from edgekit import decimals
from edgekit.job import Job

_THERMAL = Path("/sys/class/thermal")
_CPU = Path("/sys/devices/system/cpu")


def temperatures() -> dict[str, int]:
    """Milli-degrees Celsius by zone type; `TYPE@N` for zone N when an earlier zone has the same type."""
    found: dict[str, int] = {}
    for zone in sorted(_THERMAL.glob("thermal_zone*"), key=_number):
        value = _integer(zone / "temp")
        if value is None or not -50_000 <= value <= 150_000:
            continue
        kind = _text(zone / "type") or "zone"
        found[f"{kind}@{_number(zone)}" if kind in found else kind] = value
    return found


def clocks() -> dict[str, int]:
    """Current frequencies in kHz by processor number."""
    values = {str(_number(cpu)): _integer(cpu / "cpufreq/scaling_cur_freq") for cpu in sorted(_CPU.glob("cpu[0-9]*"), key=_number)}
    return {name: value for name, value in values.items() if value is not None}


def cool(job: Job) -> None:
    """Wait, at most `cool_wait_seconds`, until the hottest zone is at or below `cool_below_millicelsius`."""
    end = time.monotonic() + job.cool_wait_seconds
    while job.cool_below_millicelsius is not None and time.monotonic() < end:
        if max(temperatures().values(), default=job.cool_below_millicelsius) <= job.cool_below_millicelsius:
            return
        time.sleep(0.2)


def pin(job: Job) -> tuple[int, ...]:
    """Pin this process as the job's `affinity` says; the processors it may use then."""
    if sys.platform != "linux":
        return ()
    allowed = sorted(os.sched_getaffinity(0))
    chosen = _chosen(job, allowed)
    if chosen:
        os.sched_setaffinity(0, chosen)
    return tuple(sorted(os.sched_getaffinity(0)))


def _chosen(job: Job, allowed: list[int]) -> list[int]:
    frequencies = {cpu: _integer(_CPU / f"cpu{cpu}/cpufreq/cpuinfo_max_freq") for cpu in allowed}
    known = [value for value in frequencies.values() if value is not None]
    if job.affinity == "any" or not allowed or len(known) < len(allowed):
        return []
    ordered = sorted(known, reverse=job.affinity == "big")
    limit = ordered[min(job.threads, len(ordered)) - 1]
    return [cpu for cpu, value in frequencies.items() if value is not None and (value >= limit if job.affinity == "big" else value <= limit)]


def peak_memory_bytes(*, of_children: bool = False) -> int | None:
    """The largest resident set of this process so far, or of the largest of its children that have ended."""
    if sys.platform == "win32":
        return None
    import resource

    who = resource.RUSAGE_CHILDREN if of_children else resource.RUSAGE_SELF
    return resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _number(path: Path) -> int:
    digits = path.name.lstrip("abcdefghijklmnopqrstuvwxyz_")
    return int(digits) if decimals.is_whole(digits) else -1


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _integer(path: Path) -> int | None:
    text = _text(path)
    return int(text) if decimals.is_whole(text.removeprefix("-")) else None
