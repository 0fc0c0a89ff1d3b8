"""Runtimes that execute jobs on this machine: one module each, found by the job's `runtime` (`onnxruntime-qnn` is `onnxruntime_qnn`).

A module has one function, `open(job) -> Runtime`: it imports what it needs (stage `library`) and checks the job's options with
`check_options`. Everything it raises is a `RunnerError` with the stage where it happened; other exceptions are put down to the current stage.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from edgekit.errors import RunnerError
from edgekit.job import Delegation, Job
from edgekit.tensors import Array, TensorSpec

Side = str
"""`input` or `output`."""


class Executable(Protocol):
    """An artifact that is ready to be invoked. Tensors are in the job's order (inputs: of its first sample) and in stored types."""

    def set_inputs(self, arrays: Sequence[Array]) -> None:
        """Put inputs in place; not timed."""

    def invoke(self) -> None:
        """Compute; timed. Afterwards the outputs are in memory."""

    def outputs(self) -> Sequence[Array]:
        """The outputs of the last invocation, in memory that later invocations leave alone; not timed."""

    def delegation(self) -> Delegation | None:
        """Where operators were placed; None when the runtime cannot tell. Asked last, and may cost another load."""

    def counters(self) -> dict[str, int]:
        """Named counts of the last invocation that are not times."""


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A runtime that was imported: its version, and how it loads an artifact (raising for the stages `model`, `prepare` and `input`)."""

    version: str
    load: Callable[[Path], Executable]


def open(job: Job) -> Runtime:
    """Import the runtime that the job names. Raises `RunnerError` (stage `library`) when it is unknown or absent."""
    known = names()
    if job.runtime not in known:
        raise RunnerError(f"this machine does not know the runtime {job.runtime!r}; it knows {', '.join(known)}", stage="library")
    module = importlib.import_module(f"{__name__}.{job.runtime.replace('-', '_')}")
    runtime: Runtime = module.open(job)
    return runtime


def names() -> tuple[str, ...]:
    """The runtimes that have a module here."""
    return tuple(sorted(path.stem.replace("_", "-") for path in Path(__file__).parent.glob("*.py") if re.match("[a-z]", path.name)))


def check_options(job: Job, known: Sequence[str] = (), prefixes: Sequence[str] = ()) -> None:
    """Raise `RunnerError` (stage `prepare`) for an option that nothing reads."""
    for key in job.options:
        if key not in (*known, "match") and not key.startswith(tuple(prefixes)):
            raise RunnerError(f"{job.runtime} with accelerator {job.accelerator} has no option {key!r}", stage="prepare")


def choice(job: Job, option: str, values: Sequence[str], default: str) -> str:
    """The value of an option that is one of `values`. Raises `RunnerError` (stage `prepare`)."""
    value = job.options.get(option, default)
    if value not in values:
        raise RunnerError(f"option {option}: {value!r} is not one of {', '.join(values)}", stage="prepare")
    return value


def match(job: Job, side: Side, wanted: Sequence[TensorSpec], known: Sequence[TensorSpec], lists: Sequence[Sequence[str]]) -> list[int]:
    """Which of the runtime's tensors `known` (-1 for an open dimension) each wanted one is.

    By the first of its name `lists` that has every name once, never by luck; by position where there are no names or the option `match` is
    `index`. Raises `RunnerError`: stage `prepare` when there is no match, `input` when an input's dtype or shape is another.
    """
    by_index = choice(job, "match", ("name", "index"), "name") == "index" or not any(name for names in lists for name in names)
    index = _by_index(side, wanted, known) if by_index else _by_name(job, side, wanted, lists)
    if side == "input" and len(wanted) != len(known):
        raise RunnerError(f"the model has {len(known)} inputs, but the job names {len(wanted)}", stage="prepare")
    for spec, at in zip(wanted, index, strict=True):
        if (side == "input" or by_index) and not _agree(spec, known[at]):
            text = f"{side} {spec.name!r} is {spec.dtype}{list(spec.shape)} in the job, but the model has {known[at].dtype}{list(known[at].shape)}"
            raise RunnerError(text, stage="input" if side == "input" else "prepare")
    return index


def _by_index(side: Side, wanted: Sequence[TensorSpec], known: Sequence[TensorSpec]) -> list[int]:
    if len(wanted) != len(known):
        raise RunnerError(f"the model has {len(known)} {side}s, but the job names {len(wanted)}", stage="prepare")
    return list(range(len(wanted)))


def _by_name(job: Job, side: Side, wanted: Sequence[TensorSpec], lists: Sequence[Sequence[str]]) -> list[int]:
    asked = [job.runtime_names.get(spec.name, spec.name) for spec in wanted]
    for names in lists:
        if len(set(asked)) == len(asked) and all(list(names).count(name) == 1 for name in asked):
            return [list(names).index(name) for name in asked]
    found = ", ".join(name for names in lists for name in names)
    raise RunnerError(f"{side}s: the job wants [{', '.join(asked)}], but the runtime knows [{found}]: name them in runtime_names", stage="prepare")


def _agree(wanted: TensorSpec, known: TensorSpec) -> bool:
    same = len(wanted.shape) == len(known.shape) and all(b in (-1, a) for a, b in zip(wanted.shape, known.shape, strict=True))
    return same and wanted.dtype == known.dtype
