"""Run programs one after the other and print what they cost as ratios; both sides always run in the same session, interleaved."""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Cost:
    """Wall time of one run, the processor time it used (which a busy machine stretches less), and the peak memory of its process."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run(command: Sequence[str]) -> Cost:
    """Run a program to its end; its output is shown only when it fails."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"{' '.join(command)} failed:\n{output}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def side_by_side(name: str, plain: Sequence[str], ours: Sequence[str], *, rounds: int = 3, limit: float | None = None) -> float:
    """Run both sides `rounds` times in turn, print medians and their ratio, and return it."""
    pairs = [(run(plain), run(ours)) for _ in range(rounds)]
    before, after = (statistics.median(pair[side].seconds for pair in pairs) for side in (0, 1))
    busy = [statistics.median(pair[side].cpu_seconds for pair in pairs) for side in (0, 1)]
    memory = [max(pair[side].peak_bytes for pair in pairs) / 1e6 for side in (0, 1)]
    bound = f" (aim: at most {limit:.2f})" if limit else ""
    busy = [statistics.median(pair[side].cpu_seconds for pair in pairs) for side in (0, 1)]
    sides = f"plain {before:.2f} s ({busy[0]:.1f} s CPU), {memory[0]:.0f} MB; edgekit {after:.2f} s ({busy[1]:.1f} s CPU), {memory[1]:.0f} MB"
    print(f"{name}: {sides}; time ratio {after / before:.2f}{bound}, processor time ratio {busy[1] / busy[0]:.2f}", flush=True)
    return after / before
