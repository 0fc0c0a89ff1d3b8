"""The job and result folders: the contract between the lab side and whatever executes an artifact (`apps/CONTRACT.md` in words).

A job folder holds `job.json`, the artifact and raw little-endian inputs; a result folder holds `result.json` and raw outputs. All paths in
both files are relative to their own folder, use `/` and never leave it. A result comes from a device and is untrusted.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec

from edgekit.errors import RunnerError
from edgekit.tensors import TensorSpec

SCHEMA = 1
JOB_FILE = "job.json"
RESULT_FILE = "result.json"

MOST_BYTES = 64 << 20
"""The largest `result.json` that is read: some millions of samples."""

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A time, a size or a number of things: never below zero, and of 63 bits."""

Stage = Literal["job", "library", "model", "prepare", "input", "invoke", "output"]


class TensorFile(msgspec.Struct, frozen=True):
    """One tensor in a folder: raw bytes in `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str

    @property
    def spec(self) -> TensorSpec:
        """The tensor's name, shape and dtype."""
        return TensorSpec(self.name, self.shape, self.dtype)


class Job(msgspec.Struct, frozen=True):
    """What to run.

    Every sample is run once, in order, and its outputs are written; then the first sample is timed: `warmup_runs` runs (fewer once steady),
    then runs until `min_runs` are done or `max_seconds` have passed, at least one. `min_runs` 0 takes no latency.
    `library` is the runtime's shared library in the job folder (native runners). `accelerator` is `cpu`, `xnnpack`, `nnapi`, `gpu`, `qnn`...
    `state_from` feeds an output of the previous sample to an input of the next (output name -> input name) for streaming models.
    `runtime_names` maps a name of the job to the name the runtime knows, where they differ: tensors are matched by name, never by luck.
    With `cool_below_millicelsius` the executor first waits, at most `cool_wait_seconds`, until its hottest zone is no hotter than that.
    An option that the runtime does not know is refused.
    """

    runtime: str
    artifact: str
    samples: tuple[tuple[TensorFile, ...], ...]
    outputs: tuple[TensorSpec, ...]
    library: str = ""
    accelerator: str = "cpu"
    threads: int = 1
    affinity: Literal["any", "big", "little"] = "any"
    warmup_runs: int = 10
    min_runs: int = 100
    max_seconds: float = 5.0
    state_from: dict[str, str] = {}
    options: dict[str, str] = {}
    runtime_names: dict[str, str] = {}
    cool_below_millicelsius: int | None = None
    cool_wait_seconds: float = 0.0
    schema: int = SCHEMA


class Delegation(msgspec.Struct, frozen=True):
    """What the runtime says it placed on an accelerator: `nodes` of `total` operators, in `partitions` parts.

    `operators` and `fallback` are the kinds of operators taken and left, where it names them. `delegate` is empty when none was asked for.
    """

    delegate: str
    nodes: int
    total: int
    partitions: int = 1
    operators: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()


class Reading(msgspec.Struct, frozen=True):
    """Temperatures (milli-degrees Celsius by zone) and clocks (kHz by core) after `run` timed runs."""

    run: int
    temperatures: dict[str, int] = {}
    clocks: dict[str, int] = {}


class Result(msgspec.Struct, frozen=True):
    """What happened. `status` is `ok` or `failed`; a failure names its `stage` and `error`.

    Times are in ns, one entry a run. `load_cold_ns` is the first load of the artifact in the process, `load_warm_ns` a second one;
    `library_ns` is the load of the runtime itself. `sample_ns[i]` is the untimed run of sample i: the first is the model's first inference.
    `temperatures` are in milli-degrees Celsius by zone, `clocks` in kHz by core. `outputs[i]` belongs to sample i.
    `log` has a reading about every second of timing. `affinity` lists the processors the run could use.
    `delegation` is null where the runtime cannot tell. `counters` holds named counts that are not times (instructions, stack bytes).
    """

    status: Literal["ok", "failed"]
    stage: Stage | None = None
    error: str = ""
    runtime: str = ""
    runtime_version: str = ""
    runner_version: str = ""
    outputs: tuple[tuple[TensorFile, ...], ...] = ()
    library_ns: Count | None = None
    load_cold_ns: Count | None = None
    load_warm_ns: Count | None = None
    sample_ns: tuple[Count, ...] = ()
    warmup_ns: tuple[Count, ...] = ()
    latency_ns: tuple[Count, ...] = ()
    peak_memory_bytes: Count | None = None
    temperatures_before: dict[str, int] = {}
    temperatures_after: dict[str, int] = {}
    clocks_before: dict[str, int] = {}
    clocks_after: dict[str, int] = {}
    log: tuple[Reading, ...] = ()
    affinity: tuple[int, ...] = ()
    delegation: Delegation | None = None
    counters: dict[str, Count] = {}
    schema: int = SCHEMA


def write(folder: Path, document: Job | Result) -> None:
    """Write `job.json` or `result.json` into `folder`, complete or not at all."""
    name = JOB_FILE if isinstance(document, Job) else RESULT_FILE
    temporary = folder / f".{name}.part"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))
    temporary.replace(folder / name)


def read_job(folder: Path) -> Job:
    """Read and check `job.json`. Raises `RunnerError` (stage `job`) when it is absent, malformed or of another schema."""
    job: Job = _read(folder / JOB_FILE, Job, "job")
    return job


def read_result(folder: Path) -> Result:
    """Read and check `result.json`.

    Raises `RunnerError` (stage `output`) when it is absent, malformed, says what cannot be, or names a path outside `folder`.
    """
    result: Result = _read(folder / RESULT_FILE, Result, "output")
    placed = result.delegation
    if placed and not 0 <= placed.nodes <= placed.total:
        raise RunnerError(f"{RESULT_FILE}: {placed.nodes} of {placed.total} operators cannot be on {placed.delegate!r}", stage="output")
    for tensor in (tensor for sample in result.outputs for tensor in sample):
        inside(folder, tensor.file)
    return result


def inside(folder: Path, name: str) -> Path:
    """The path of `name` in `folder`. Raises `RunnerError` when it is absolute or climbs out."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise RunnerError(f"{folder.name}: the path {name!r} leaves the folder", stage="output")
    return folder / path


def _read(path: Path, kind: type[Any], stage: str) -> Any:
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise RunnerError(f"{path.name} has {size} bytes, more than {MOST_BYTES}", stage=stage)
        document = msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise RunnerError(f"there is no {path.name} in {path.parent}", "the runner ended before it could write one", stage=stage) from None
    except (msgspec.DecodeError, RecursionError, OSError) as error:
        raise RunnerError(f"{path.name}: {error}", stage=stage) from error
    if document.schema != SCHEMA:
        raise RunnerError(
            f"{path.name}: schema {document.schema}, but this edgekit speaks {SCHEMA}", "use a runner of the same edgekit version", stage=stage
        )
    return document
