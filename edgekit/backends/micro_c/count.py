"""How many instructions an inference takes on an emulated core: an artifact as a job for the host runner, in a process of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from edgekit import job as contract
from edgekit.errors import RunnerError
from edgekit.job import Job, TensorFile
from edgekit.tensors import Array, Signature, TensorSpec, quantize, write_raw
from edgekit.virtual.cortex_m.boards import BOARDS, EMULATED

_TIMEOUT_S = 60
"""Enough for any firmware of a net; TFLM itself may not be compiled for the core yet, which a test does at leisure."""


def instructions(artifact: Path, runtime: str, core: str, signature: Signature, sample: Mapping[str, Array]) -> int:
    """Instructions of one inference of `sample` (real values) by `runtime` (`micro-c`, `tflm`) on the emulated `core`.

    Raises `RunnerError` with the reason where it cannot be run here: no emulator, no compiler, no source of the interpreter.
    """
    core = EMULATED.get(core, core)
    if core not in BOARDS:
        raise RunnerError(f"there is no emulated {core}", stage="prepare")
    with tempfile.TemporaryDirectory(prefix="edgekit-count-") as scratch:
        job, result = Path(scratch, "job"), Path(scratch, "result")
        job.mkdir()
        result.mkdir()
        _write(job, artifact, runtime, core, signature, sample)
        command = [sys.executable, "-m", "edgekit.hostrun", str(job), str(result)]
        try:
            subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False)
        except subprocess.TimeoutExpired as error:
            raise RunnerError(f"the run did not end within {_TIMEOUT_S} s", stage="invoke") from error
        found = contract.read_result(result)
    if found.status != "ok" or "instructions" not in found.counters:
        raise RunnerError(found.error or "nothing was counted", stage=found.stage or "output")
    return found.counters["instructions"]


def _write(job: Path, artifact: Path, runtime: str, core: str, signature: Signature, sample: Mapping[str, Array]) -> None:
    (shutil.copytree if artifact.is_dir() else shutil.copyfile)(artifact, job / artifact.name)
    files = []
    for number, spec in enumerate(signature.inputs):
        write_raw(job / f"{number}.raw", quantize(sample[spec.name], spec))
        files.append(TensorFile(spec.name, spec.dtype, spec.shape, f"{number}.raw"))
    outputs = tuple(TensorSpec(spec.name, spec.shape, spec.dtype) for spec in signature.outputs)
    contract.write(job, Job(runtime, artifact.name, (tuple(files),), outputs, accelerator=core, warmup_runs=0, min_runs=0))
