"""TensorFlow Lite Micro beside an Ethos-U: nothing here runs it, and this module says so where a job asks for it."""

from __future__ import annotations

from edgekit.errors import RunnerError
from edgekit.hostruntimes import Runtime
from edgekit.job import Job


def open(job: Job) -> Runtime:
    """Raise `RunnerError` (stage `job`): there is no functional model of the NPU in any package, and none in QEMU."""
    what = f"{job.runtime}: no NPU is at hand, neither here nor on QEMU's boards, so nothing runs what vela compiled"
    instead = "package the model for mcu-cortex-m55, which computes with the same integers, and test that on virtual:cortex-m55"
    raise RunnerError(f"{what}: {instead}", stage="job")
