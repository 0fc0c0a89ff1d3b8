"""Core ML packages on this machine: on a Mac by Core ML itself, elsewhere by the interpreter of `edgekit.virtual.coreml`, which computes as Core
ML's CPU unit does. The option `engine` is `coreml` or `interpreter`.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekit import __version__
from edgekit.errors import BundleError, EdgekitError, MissingPackageError, RunnerError, require
from edgekit.hostruntimes import Executable, Runtime, _coreml_mac, check_options, choice, match
from edgekit.job import Delegation, Job
from edgekit.tensors import Array


def open(job: Job) -> Runtime:
    """The engine that the job or this machine asks for. Raises `RunnerError` (stages `library` and `prepare`)."""
    mac = platform.system() == "Darwin"
    engine = choice(job, "engine", ("coreml", "interpreter"), "coreml" if mac else "interpreter")
    if engine == "interpreter":
        return _interpreter(job)
    if not mac:
        raise RunnerError(f"Core ML itself runs on Apple's systems only, and this is {platform.system()}", "engine=interpreter", stage="library")
    return _coreml_mac.open(job)


def _interpreter(job: Job) -> Runtime:
    """Import torch, whose kernels the interpreter uses. Raises `RunnerError`: stage `library` when absent, `prepare` for another unit than `cpu`."""
    try:
        torch = require("torch", extra="coreml", purpose="running a Core ML package on this machine")
    except MissingPackageError as error:
        raise RunnerError(error.message, error.hint, stage="library") from error
    if job.accelerator not in ("cpu", "all"):  # all units that there are: here it is one
        raise RunnerError(f"the runtime coreml has no accelerator {job.accelerator!r} here; it computes as the cpu unit does", stage="prepare")
    check_options(job, ("engine",))
    torch.set_num_threads(job.threads)
    return Runtime(f"edgekit {__version__} interpreter, torch {torch.__version__}", lambda artifact: _load(job, artifact))


def _load(job: Job, artifact: Path) -> Executable:
    from edgekit.formats import mlprogram

    try:
        model = mlprogram.open(str(artifact), _flexible_shapes(job, artifact))
        session = mlprogram.session(model)
    except EdgekitError as error:
        raise RunnerError(error.message, error.hint, stage="model" if isinstance(error, BundleError) else "prepare") from error
    known, made = model.signature.inputs, model.signature.outputs
    wanted = tuple(file.spec for file in job.samples[0])
    inputs = [known[i].name for i in match(job, "input", wanted, known, [[x.name for x in known]])]
    outputs = [made[i].name for i in match(job, "output", job.outputs, made, [[x.name for x in made]])]
    return _Loaded(session, inputs, outputs)


def _flexible_shapes(job: Job, artifact: Path) -> dict[str, tuple[int, ...]]:
    """The job's shapes of those inputs whose sizes the package leaves open."""
    from edgekit.virtual.coreml import package

    open_names = {feature.name for feature in package.read(artifact).program.features_in if feature.flexible}
    shapes = {job.runtime_names.get(file.name, file.name): file.shape for file in job.samples[0]}
    return {name: shape for name, shape in shapes.items() if name in open_names}


class _Loaded:
    def __init__(self, session: Any, inputs: list[str], outputs: list[str]) -> None:
        self._session, self._inputs, self._outputs = session, inputs, outputs
        self._fed: dict[str, Any] = {}
        self._results: list[Any] = []

    def set_inputs(self, arrays: Sequence[Array]) -> None:
        self._fed = self._session.tensors(dict(zip(self._inputs, arrays, strict=True)))

    def invoke(self) -> None:
        self._results = self._session.compute(self._fed)

    def outputs(self) -> Sequence[Array]:
        arrays = self._session.arrays(self._results)
        return [arrays[name] for name in self._outputs]

    def delegation(self) -> Delegation | None:
        return None  # Core ML places operators; an interpreter cannot tell where

    def counters(self) -> dict[str, int]:
        return {}
