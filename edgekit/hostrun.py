"""The job contract in Python, for this machine: `python -m edgekit.hostrun JOB_DIR RESULT_DIR`.

The same steps in the same order as the native runner (`apps/CONTRACT.md`, section 4); runtimes are the modules of `edgekit.hostruntimes`.
Where the system can fork, the work is done in a child process, so that a runtime that crashes is reported like any other failure.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from edgekit import __version__, hostruntimes
from edgekit import job as contract
from edgekit.errors import EdgekitError, RunnerError
from edgekit.hostruntimes import Executable, _probe
from edgekit.job import Job, Reading, Result, Stage, TensorFile
from edgekit.tensors import DTYPES, Array, TensorSpec, read_raw, write_raw

STAGES: tuple[Stage, ...] = get_args(Stage)
EXIT_USAGE = 2
EXIT_STAGE = 10
"""Plus the stage's position in `STAGES`."""

_MAX_RANK = 8
_MAX_TENSORS = 256
_MAX_SAMPLES = 100_000
_MAX_RUNS = 1_000_000
_MAX_BYTES = 2**36
_MAX_LOG = 600


class _Progress:
    """What is known so far: the stage the work is in, and the fields of the result."""

    def __init__(self, enter: Callable[[Stage], None] = lambda stage: None) -> None:
        self.stage: Stage = "job"
        self.fields: dict[str, Any] = {"runner_version": f"python {__version__}"}
        self._enter = enter

    def enter(self, stage: Stage) -> None:
        """The work is in `stage` from now on."""
        self.stage = stage
        self._enter(stage)


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute one job. The exit code is 0, 2 for wrong arguments, or 10 and more for the stage that failed."""
    paths = [Path(x) for x in (sys.argv[1:] if arguments is None else arguments)]
    if len(paths) != 2 or not all(path.is_dir() for path in paths):
        sys.stderr.write("usage: python -m edgekit.hostrun JOB_DIR RESULT_DIR (two folders that exist)\n")
        return EXIT_USAGE
    if not hasattr(os, "fork"):
        return execute(paths[0], paths[1])
    shared = mmap.mmap(-1, 1)
    child = os.fork()
    if child == 0:
        _die_with_parent()
        code = execute(paths[0], paths[1], lambda stage: shared.__setitem__(0, STAGES.index(stage)))
        sys.stderr.flush()
        os._exit(code)  # destructors of runtimes hang or crash, and the result is complete
    _, status = os.waitpid(child, 0)
    return _after(status, STAGES[shared[0]], paths[1])


def execute(job_folder: Path, result_folder: Path, entered: Callable[[Stage], None] = lambda stage: None) -> int:
    """Execute a job in this process and write its result, whatever happens. Returns the exit code of `main`; `entered` hears each stage."""
    progress = _Progress(entered)
    try:
        _run(job_folder, result_folder, progress)
    except RunnerError as error:
        stage = next((known for known in STAGES if known == error.stage), progress.stage)
        return _failed(result_folder, progress, stage, error.message)
    except EdgekitError as error:
        return _failed(result_folder, progress, progress.stage, error.message)
    except Exception as error:  # whatever a runtime raises is a failure of the stage it was in
        return _failed(result_folder, progress, progress.stage, f"{type(error).__name__}: {error}")
    contract.write(result_folder, Result("ok", **progress.fields))
    return 0


def _run(job_folder: Path, result_folder: Path, progress: _Progress) -> None:
    job = contract.read_job(job_folder)
    progress.fields["runtime"] = job.runtime
    _check(job, job_folder)
    _probe.cool(job)
    progress.fields |= {"affinity": _probe.pin(job), "temperatures_before": _probe.temperatures(), "clocks_before": _probe.clocks()}
    loaded = _load(job, job_folder, progress)
    _run_samples(job, job_folder, result_folder, loaded, progress)
    if job.min_runs:
        _take_latency(job, job_folder, loaded, progress)
    progress.fields |= {"temperatures_after": _probe.temperatures(), "clocks_after": _probe.clocks(), "peak_memory_bytes": _probe.peak_memory_bytes()}
    progress.fields["counters"] = loaded.counters()
    progress.fields["delegation"] = loaded.delegation()


def _load(job: Job, folder: Path, progress: _Progress) -> Executable:
    artifact = contract.inside(folder, job.artifact)
    progress.enter("library")
    start = time.monotonic_ns()
    runtime = hostruntimes.open(job)
    progress.fields |= {"library_ns": time.monotonic_ns() - start, "runtime_version": runtime.version}
    for field in ("load_cold_ns", "load_warm_ns"):
        progress.enter("model")
        start = time.monotonic_ns()
        loaded = runtime.load(artifact)
        progress.fields[field] = time.monotonic_ns() - start
        if field == "load_cold_ns":
            del loaded
    return loaded


def _run_samples(job: Job, job_folder: Path, result_folder: Path, loaded: Executable, progress: _Progress) -> None:
    progress.enter("output")
    (result_folder / "outputs").mkdir(exist_ok=True)
    states: dict[str, Array] = {}
    for sample in range(len(job.samples)):
        progress.enter("input")
        loaded.set_inputs(_inputs(job, job_folder, sample, states))
        _timed(loaded, "sample_ns", progress)
        progress.enter("output")
        outputs = loaded.outputs()
        pairs = enumerate(zip(job.outputs, outputs, strict=True))
        files = tuple(_write(result_folder, f"outputs/{sample}-{i}.raw", spec, array) for i, (spec, array) in pairs)
        progress.fields.setdefault("outputs", []).append(files)
        progress.enter("invoke")
        states = _states(job, outputs)


def _inputs(job: Job, folder: Path, sample: int, states: dict[str, Array]) -> list[Array]:
    """A sample's inputs in the order of the first sample, states in the place of their files."""
    files = {file.name: file for file in job.samples[sample]}
    return [states[file.name] if file.name in states else _read(folder, files[file.name]) for file in job.samples[0]]


def _read(folder: Path, file: TensorFile) -> Array:
    try:
        return read_raw(contract.inside(folder, file.file), file.spec)
    except (OSError, ValueError) as error:
        raise RunnerError(f"input {file.name!r}: {error}", stage="input") from error


def _write(folder: Path, name: str, spec: TensorSpec, array: Array) -> TensorFile:
    if array.dtype.name not in DTYPES:
        raise RunnerError(f"output {spec.name!r} has the type {array.dtype}, which has no name in the contract", stage="output")
    write_raw(folder / name, array)
    return TensorFile(spec.name, array.dtype.name, array.shape, name)


def _states(job: Job, outputs: Sequence[Array]) -> dict[str, Array]:
    by_name = {spec.name: array for spec, array in zip(job.outputs, outputs, strict=True)}
    inputs = {file.name: file for file in job.samples[0]}
    states = {}
    for source, name in job.state_from.items():
        array, file = by_name[source], inputs[name]
        if array.dtype.name != file.dtype or array.size != file.spec.elements:
            text = f"the state {source!r} is {array.dtype}{list(array.shape)}, but the input {name!r} takes {file.dtype}{list(file.shape)}"
            raise RunnerError(text, stage="invoke")
        states[name] = array.reshape(file.shape)
    return states


def _timed(loaded: Executable, field: str, progress: _Progress) -> None:
    progress.enter("invoke")
    start = time.monotonic_ns()
    loaded.invoke()
    elapsed = time.monotonic_ns() - start
    progress.fields.setdefault(field, []).append(elapsed)


def _take_latency(job: Job, folder: Path, loaded: Executable, progress: _Progress) -> None:
    progress.enter("input")
    loaded.set_inputs(_inputs(job, folder, 0, {}))
    while len(warmup := progress.fields.get("warmup_ns", [])) < job.warmup_runs and not _steady(warmup):
        _timed(loaded, "warmup_ns", progress)
    start = logged = time.monotonic()
    log: list[Reading] = []
    for done in range(1, job.min_runs + 1):
        _timed(loaded, "latency_ns", progress)
        now = time.monotonic()
        if now - start >= job.max_seconds:
            break
        if now - logged >= 1 and len(log) < _MAX_LOG and done < job.min_runs:
            log.append(Reading(done, _probe.temperatures(), _probe.clocks()))
            logged = time.monotonic()
    progress.fields["log"] = tuple(log)


def _steady(warmup: Sequence[int]) -> bool:
    last = warmup[-3:]
    return len(last) == 3 and max(last) <= 1.05 * min(last)


def _check(job: Job, folder: Path) -> None:
    """Limits of the contract that the types do not hold. Raises `RunnerError` (stage `job`)."""
    limits = {
        "threads": (job.threads, 1, 256),
        "warmup_runs": (job.warmup_runs, 0, _MAX_RUNS),
        "min_runs": (job.min_runs, 0, _MAX_RUNS),
        "max_seconds": (job.max_seconds, 0, 86_400),
        "cool_wait_seconds": (job.cool_wait_seconds, 0, 86_400),
        "the number of samples": (len(job.samples), 1, _MAX_SAMPLES),
        "the number of outputs": (len(job.outputs), 1, _MAX_TENSORS),
    }
    for name, (value, least, most) in limits.items():
        _demand(least <= value <= most, f"{name} is {value}, not in {least}..{most}")
    first = {file.name: file for file in job.samples[0]}
    outputs = {spec.name for spec in job.outputs}
    for sample in job.samples:
        _check_sample(sample, first)
    for spec in (*(file.spec for file in job.samples[0]), *job.outputs):
        _check_tensor(spec)
    _demand(len(outputs) == len(job.outputs), "an output is named twice")
    _demand(set(job.state_from) <= outputs and set(job.state_from.values()) <= first.keys(), "state_from names a tensor that the job does not")
    _demand(len(set(job.state_from.values())) == len(job.state_from), "state_from feeds an input twice")
    try:
        _demand(contract.inside(folder, job.artifact).exists(), f"there is no artifact {job.artifact}")
        for path in (job.library or "none", *(file.file for sample in job.samples for file in sample)):
            contract.inside(folder, path)
    except RunnerError as error:
        raise RunnerError(error.message, error.hint, stage="job") from error


def _check_sample(sample: Sequence[TensorFile], first: dict[str, TensorFile]) -> None:
    _demand(1 <= len(sample) <= _MAX_TENSORS, f"a sample has {len(sample)} inputs")
    _demand(len({file.name for file in sample}) == len(sample) == len(first), "samples differ in their inputs")
    for file in sample:
        _demand(file.name in first and file.spec == first[file.name].spec, f"the input {file.name!r} changes from sample to sample")


def _check_tensor(spec: TensorSpec) -> None:
    _demand(spec.dtype in DTYPES, f"tensor {spec.name!r} has the unknown dtype {spec.dtype!r}")
    _demand(len(spec.shape) <= _MAX_RANK and all(size >= 0 for size in spec.shape), f"tensor {spec.name!r} has the shape {list(spec.shape)}")
    _demand(spec.elements * 8 <= _MAX_BYTES, f"tensor {spec.name!r} is too large")


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RunnerError(f"job.json: {otherwise}", stage="job")


def _failed(folder: Path, progress: _Progress, stage: Stage, error: str) -> int:
    sys.stderr.write(f"hostrun: {error}\n")
    contract.write(folder, Result("failed", stage, error, **progress.fields))
    return EXIT_STAGE + STAGES.index(stage)


def _after(status: int, stage: Stage, result_folder: Path) -> int:
    """The child's exit code; a result in its place when it died before it could write one."""
    code = os.waitstatus_to_exitcode(status)
    if (result_folder / contract.RESULT_FILE).exists():
        return code
    died = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"an exit with code {code}"
    progress, peak = _Progress(), _probe.peak_memory_bytes(of_children=True)
    progress.fields |= {"peak_memory_bytes": peak}
    used = f", after using up to {peak / 1e6:.0f} MB of memory" if peak else ""
    return _failed(result_folder, progress, stage, f"the runtime died of {died}{used}")


def _die_with_parent() -> None:
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nothing runs on when the lab kills its executor


if __name__ == "__main__":
    sys.exit(main())
