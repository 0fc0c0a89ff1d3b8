"""Power-of-two QDQ artifacts: in the integer reference of `edgekit.virtual.dpu`, or on a board through ONNX Runtime's VitisAI provider.

Accelerators: `dpu` (the reference, in this process) and `vitisai` (the board's own).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgekit import __version__
from edgekit.errors import EdgekitError, RunnerError
from edgekit.hostruntimes import Executable, Runtime, check_options, match, onnxruntime
from edgekit.job import Delegation, Job
from edgekit.tensors import Array
from edgekit.virtual.dpu import reader
from edgekit.virtual.dpu.program import Program

MODEL_FILE = "model.onnx"


def open(job: Job) -> Runtime:
    """The reference, or ONNX Runtime with its VitisAI provider. Raises `RunnerError` (stages `library` and `prepare`)."""
    if job.accelerator == "vitisai":
        provided = onnxruntime.open(job)
        return Runtime(provided.version, lambda artifact: _OnBoard(provided.load(_file(artifact))))
    if job.accelerator != "dpu":
        raise RunnerError(f"the runtime dpu has no accelerator {job.accelerator!r}; it has dpu (the integer reference) and vitisai", stage="prepare")
    check_options(job, ("rounding",))
    return Runtime(f"edgekit {__version__} integer reference", lambda artifact: _load(job, artifact))


class _OnBoard:
    """A session of ONNX Runtime whose provider is the DPU."""

    def __init__(self, inner: Executable) -> None:
        self.set_inputs, self.invoke, self.outputs, self.counters = inner.set_inputs, inner.invoke, inner.outputs, inner.counters
        self._inner = inner

    def delegation(self) -> Delegation | None:
        found = self._inner.delegation()
        return None if found is None else msgspec.structs.replace(found, delegate="dpu")


def _file(artifact: Path) -> Path:
    return artifact / MODEL_FILE if artifact.is_dir() else artifact


def _load(job: Job, artifact: Path) -> Executable:
    try:
        program = reader.read(_file(artifact), job.options.get("rounding"))
    except EdgekitError as error:
        raise RunnerError(error.message, error.hint, stage="model") from error
    known, made = program.signature.inputs, program.signature.outputs
    wanted = tuple(file.spec for file in job.samples[0])
    inputs = [known[i].name for i in match(job, "input", wanted, known, [[x.name for x in known]])]
    outputs = [made[i].name for i in match(job, "output", job.outputs, made, [[x.name for x in made]])]
    return _Loaded(program, inputs, outputs)


class _Loaded:
    def __init__(self, program: Program, inputs: list[str], outputs: list[str]) -> None:
        self._program, self._inputs, self._outputs = program, inputs, outputs
        self._fed: dict[str, Array] = {}
        self._values: dict[str, Array] = {}

    def set_inputs(self, arrays: Sequence[Array]) -> None:
        self._fed = dict(zip(self._inputs, arrays, strict=True))

    def invoke(self) -> None:
        self._values = self._program.run(self._fed)

    def outputs(self) -> Sequence[Array]:
        return [self._values[name] for name in self._outputs]

    def delegation(self) -> Delegation | None:
        steps = [step for step in self._program.steps if step.place != "edge"]
        taken = [step.type for step in steps if step.place == "dpu"]
        left = [step.type for step in steps if step.place == "cpu"]
        return Delegation("dpu", len(taken), len(steps), 1, tuple(sorted(set(taken))), tuple(sorted(set(left))))

    def counters(self) -> dict[str, int]:
        return {}
