"""Carry a bundle to a device and back: bundle -> job folder -> link -> result folder -> Run."""

from __future__ import annotations

import dataclasses
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Literal

from edgekit import job as contract
from edgekit import runtimes
from edgekit.bundle import Bundle
from edgekit.errors import RunnerError
from edgekit.job import Job, Result, TensorFile
from edgekit.manifest import Manifest
from edgekit.tensors import Array, quantize, read_raw, write_raw
from edgekit.transports import Facts, Link
from edgekit.transports.failures import HINTS

_ARTIFACT = "artifact"
"""Folder of a job that holds what the bundle names: beside runner and libraries, which are looked up there, a model could pass for one."""

_LONGEST_ERROR = 4000
"""Characters of what a device says of its failure that are passed on."""


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How to run: latency is taken for `min_runs` runs or `max_seconds`, whichever ends first; `runtime_library` replaces the one found.

    With `cool_below_millicelsius` the device first waits until it is no hotter, at most `cool_wait_s`.
    """

    threads: int = 4
    affinity: Literal["any", "big", "little"] = "any"
    warmup_runs: int = 10
    min_runs: int = 100
    max_seconds: float = 5.0
    timeout_s: float = 600.0
    accelerator: str = ""
    runtime_library: Path | None = None
    cool_below_millicelsius: int | None = None
    cool_wait_s: float = 60.0
    options: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Run:
    """What came back: `outputs[i]` are sample i's outputs in stored types, by source name and in the signature's order.

    `runtime_release` is the version of the runtime that computed them, by its package's numbers; empty where nothing tells.
    """

    facts: Facts
    job: Job
    result: Result
    outputs: tuple[dict[str, Array], ...]
    seconds: float
    runtime_release: tuple[int, ...] = ()


def run(bundle: Bundle, link: Link, facts: Facts, options: RunOptions) -> Run:
    """Execute a bundle's golden samples on the device that `link` reaches and `facts` describe.

    Raises `DeviceError` when the device could not be used, `RunnerError` when the runner failed there or its answer cannot be trusted.
    """
    with tempfile.TemporaryDirectory(prefix="edgekit-job-") as scratch:
        job_folder, result_folder = Path(scratch, "job"), Path(scratch, "result")
        job_folder.mkdir()
        result_folder.mkdir()
        job = write_job(bundle, job_folder, facts, options)
        start = time.monotonic()
        link.execute(job_folder, result_folder, options.timeout_s)
        seconds = time.monotonic() - start
        result = contract.read_result(result_folder)
        if result.status != "ok":
            raise RunnerError(_failure(result, facts), _hint(result), stage=result.stage or "invoke")
        outputs = read_outputs(result_folder, result, bundle.manifest)
    return Run(facts, job, result, outputs, seconds, _release(facts, job, result, options))


def _release(facts: Facts, job: Job, result: Result, options: RunOptions) -> tuple[int, ...]:
    """A library that came from edgekit's pinned wheel has that version; TensorFlow Lite's interface tells TensorFlow's number, not LiteRT's."""
    pinned = runtimes.version(job.runtime, facts.platform)
    if facts.runner == "native" and options.runtime_library is None and pinned:
        return runtimes.release(pinned)
    return () if "TfLite C" in result.runtime_version else runtimes.release(result.runtime_version)


def write_job(bundle: Bundle, folder: Path, facts: Facts, options: RunOptions) -> Job:
    """Fill a job folder for a device with these facts: artifact, inputs in stored types, and for a native device runner and runtime library."""
    manifest = bundle.manifest
    target = manifest.target
    bundle.extract(manifest.artifact.main, folder / _ARTIFACT)
    samples = tuple(_write_inputs(bundle, folder, sample) for sample in range(len(manifest.golden.samples)))
    native = facts.runner == "native"
    job = Job(
        runtime=target.runtime.name,
        artifact=f"{_ARTIFACT}/{Path(manifest.artifact.main).name}",
        samples=samples,
        outputs=manifest.signature.outputs,
        library=_add_native(folder, facts, manifest, options) if native else "",
        accelerator=options.accelerator or (runtimes.ON_BOARD.get(target.runtime.name, "") if native else "") or target.runtime.accelerator,
        threads=min(options.threads, facts.cores or options.threads),
        affinity=options.affinity,
        warmup_runs=options.warmup_runs,
        min_runs=options.min_runs,
        max_seconds=options.max_seconds,
        options=options.options,
        runtime_names=manifest.artifact.runtime_names,
        cool_below_millicelsius=options.cool_below_millicelsius,
        cool_wait_seconds=options.cool_wait_s,
    )
    contract.write(folder, job)
    return job


def read_outputs(folder: Path, result: Result, manifest: Manifest) -> tuple[dict[str, Array], ...]:
    """The outputs of every sample, checked against the bundle's signature. Raises `RunnerError` when one is absent or of another form."""
    if len(result.outputs) != len(manifest.golden.samples):
        raise RunnerError(f"{len(result.outputs)} samples came back, {len(manifest.golden.samples)} were sent", stage="output")
    return tuple(_read_sample(folder, sample, manifest) for sample in result.outputs)


def _write_inputs(bundle: Bundle, folder: Path, sample: int) -> tuple[TensorFile, ...]:
    (folder / "inputs").mkdir(exist_ok=True)
    files = []
    for index, (spec, stored) in enumerate(zip(bundle.manifest.signature.inputs, stored_inputs(bundle, sample), strict=True)):
        name = f"inputs/{sample:03d}-{index}.raw"
        write_raw(folder / name, stored)
        files.append(TensorFile(spec.name, spec.dtype, spec.shape, name))
    return tuple(files)


def stored_inputs(bundle: Bundle, sample: int) -> tuple[Array, ...]:
    """A golden sample's inputs in the artifact's stored types, in the signature's order."""
    return tuple(quantize(bundle.golden("inputs", sample, index), spec) for index, spec in enumerate(bundle.manifest.signature.inputs))


def golden(bundle: Bundle, kind: str) -> tuple[dict[str, Array], ...]:
    """The golden tensors of a kind (`inputs`, `reference`, `host`), by source name, one dict a sample, in the types they are stored in."""
    signature = bundle.manifest.signature
    names = [spec.name for spec in (signature.inputs if kind == "inputs" else signature.outputs)]
    samples = range(len(bundle.manifest.golden.samples))
    return tuple({name: bundle.golden(kind, sample, index) for index, name in enumerate(names)} for sample in samples)


def _add_native(folder: Path, facts: Facts, manifest: Manifest, options: RunOptions) -> str:
    if manifest.target.runtime.name in runtimes.ON_BOARD:
        runtimes.write_python_runner(folder / "runner")
        return ""
    library = runtimes.library(manifest.target.runtime.name, facts.platform, options.runtime_library)
    shutil.copy(runtimes.runner(facts.platform), folder / "runner")
    shutil.copy(library, folder / library.name)
    return library.name


def _read_sample(folder: Path, files: tuple[TensorFile, ...], manifest: Manifest) -> dict[str, Array]:
    by_name = {file.name: file for file in files}
    outputs = {}
    for spec in manifest.signature.outputs:
        file = by_name.get(spec.name)
        if file is None:
            raise RunnerError(f"the device gave no output {spec.name!r}; it gave {', '.join(sorted(by_name)) or 'none'}", stage="output")
        if (file.dtype, file.shape) != (spec.dtype, spec.shape):
            raise RunnerError(f"output {spec.name!r} came back as {file.dtype}{list(file.shape)}, not {spec.dtype}{list(spec.shape)}", stage="output")
        try:
            outputs[spec.name] = read_raw(contract.inside(folder, file.file), file.spec)
        except (OSError, ValueError) as error:
            raise RunnerError(f"output {spec.name!r}: {error}", stage="output") from error
    return outputs


def _failure(result: Result, facts: Facts) -> str:
    said = result.error[:_LONGEST_ERROR] or "no reason given"
    return f"the runner failed on {facts.model or facts.identity} at the stage {result.stage or 'unknown'}: {said}"


def _hint(result: Result) -> str | None:
    if re.search(r"\bsignal 9\b", result.error):
        return HINTS["killed"]
    return {
        "library": "give a runtime library built for this device with --runtime",
        "model": "was the bundle packaged for this target and runtime version?",
        "prepare": "the runtime refuses the artifact; 'edgekit inspect BUNDLE' lists its operators and versions",
    }.get(result.stage or "")
