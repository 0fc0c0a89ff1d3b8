"""Generated C on an emulated Cortex-M core: see `_core` for accelerators, options and counters."""

from __future__ import annotations

from edgekit.hostruntimes import Runtime, _core
from edgekit.job import Job
from edgekit.virtual.cortex_m import build


def open(job: Job) -> Runtime:
    """Find compiler and emulator. Raises `RunnerError`: stage `library` when one is absent, `prepare` for another core or option."""
    return _core.open(job, build.build)
