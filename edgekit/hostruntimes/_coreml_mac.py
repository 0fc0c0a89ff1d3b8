"""Core ML itself, on a Mac, through coremltools. Written from Apple's documentation of `MLModel`; no Mac was there to run it on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekit.errors import EdgekitError, RunnerError, require
from edgekit.hostruntimes import Executable, Runtime, check_options, match
from edgekit.job import Delegation, Job
from edgekit.tensors import Array

UNITS = {"cpu": "CPU_ONLY", "gpu": "CPU_AND_GPU", "ane": "CPU_AND_NE", "all": "ALL"}


def open(job: Job) -> Runtime:
    """Import coremltools. Raises `RunnerError`: stage `library` when absent, `prepare` for an unknown accelerator."""
    try:
        ct = require("coremltools", extra="coreml", purpose="running a package with Core ML")
    except EdgekitError as error:
        raise RunnerError(error.message, error.hint, stage="library") from error
    if job.accelerator not in UNITS:
        raise RunnerError(f"coreml has no accelerator {job.accelerator!r}; it has {', '.join(UNITS)}", stage="prepare")
    check_options(job, ("engine",))
    return Runtime(f"Core ML, coremltools {ct.__version__}", lambda artifact: _load(ct, job, artifact))


def _load(ct: Any, job: Job, artifact: Path) -> Executable:
    from edgekit.formats import mlprogram

    try:
        model = mlprogram.open(str(artifact), {})
    except EdgekitError as error:
        raise RunnerError(error.message, error.hint, stage="model") from error
    try:
        loaded = ct.models.MLModel(str(artifact), compute_units=getattr(ct.ComputeUnit, UNITS[job.accelerator]))
    except Exception as error:  # Core ML's own errors come as several types
        raise RunnerError(f"Core ML does not load the package: {error}", stage="prepare") from error
    known, made = model.signature.inputs, model.signature.outputs
    wanted = tuple(file.spec for file in job.samples[0])
    inputs = [known[i].name for i in match(job, "input", wanted, known, [[x.name for x in known]])]
    outputs = [made[i].name for i in match(job, "output", job.outputs, made, [[x.name for x in made]])]
    images = frozenset(feature.name for feature in mlprogram.package_of(model).program.features_in if feature.channels)
    return _Loaded(loaded, inputs, outputs, images)


def _picture(pixels: Array) -> Any:
    """Pixels [1, height, width, channels] as coremltools takes images."""
    pillow = require("PIL.Image", extra="images", purpose="giving Core ML an image")
    return pillow.fromarray(pixels[0, :, :, 0] if pixels.shape[3] == 1 else pixels[0])


class _Loaded:
    def __init__(self, model: Any, inputs: list[str], outputs: list[str], images: frozenset[str]) -> None:
        self._model, self._inputs, self._outputs, self._images = model, inputs, outputs, images
        self._fed: dict[str, Any] = {}
        self._results: dict[str, Any] = {}

    def set_inputs(self, arrays: Sequence[Array]) -> None:
        self._fed = {name: _picture(array) if name in self._images else array for name, array in zip(self._inputs, arrays, strict=True)}

    def invoke(self) -> None:
        self._results = self._model.predict(self._fed)

    def outputs(self) -> Sequence[Array]:
        import numpy as np

        return [np.array(self._results[name]) for name in self._outputs]

    def delegation(self) -> Delegation | None:
        return None

    def counters(self) -> dict[str, int]:
        return {}
