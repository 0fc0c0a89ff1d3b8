"""Firmware on an emulated Cortex-M core, as runtimes use it: the accelerator names the core (`cortex-m4`, `cortex-m55`, ...).

Counters: `instructions` of the last inference (executed by the emulator, not cycles), `flash_bytes`, `sram_bytes` (static, without the stack;
neither where the interpreter is ready-made),
`arena_bytes`, `stack_bytes` (the deepest so far) and `stack_reserved_bytes`. Option `stack_bytes`: how much stack is reserved.
"""

from __future__ import annotations

import subprocess
import tempfile
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from edgekit import decimals
from edgekit.errors import ConversionError, EdgekitError, MissingPackageError, RunnerError
from edgekit.hostruntimes import Executable, Runtime, check_options, match
from edgekit.job import Delegation, Job
from edgekit.tensors import Array
from edgekit.virtual.cortex_m import build, process
from edgekit.virtual.cortex_m.boards import BOARDS, Board

_STACK_LIMITS = (1 << 10, 1 << 20)


Build = Callable[[Path, Board, Path, int], build.Firmware]
"""(artifact, board, scratch folder, stack in bytes) -> firmware."""


def open(job: Job, make: Build, version: str = "", options: tuple[str, ...] = ()) -> Runtime:
    """Find compiler and emulator. Raises `RunnerError`: stage `library` when one is absent, `prepare` for another core or option."""
    if job.accelerator == "cpu":
        raise RunnerError(f"{job.runtime} runs on a microcontroller's core, not on this machine: --device virtual:cortex-m4", stage="prepare")
    if job.accelerator not in BOARDS:
        raise RunnerError(f"there is no emulated core {job.accelerator!r}; there are {', '.join(BOARDS)}", stage="prepare")
    check_options(job, ("stack_bytes", *options))
    stack_bytes = job.options.get("stack_bytes", str(build.STACK_BYTES))
    if not decimals.is_whole(stack_bytes) or not _STACK_LIMITS[0] <= int(stack_bytes) <= _STACK_LIMITS[1] or int(stack_bytes) % 16:
        raise RunnerError(f"option stack_bytes: {stack_bytes!r} is not a multiple of 16 in {_STACK_LIMITS}", stage="prepare")
    try:
        build.compiler()
        emulator = process.emulator()
    except MissingPackageError as error:
        raise RunnerError(error.message, error.hint, stage="library") from error
    first_line = subprocess.run([emulator, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()[0]
    name = ", ".join(filter(None, (version, BOARDS[job.accelerator].machine, first_line)))
    scratch = tempfile.TemporaryDirectory(prefix="edgekit-mcu-")

    @cache  # an artifact is loaded twice, and its firmware compiled once
    def built(artifact: Path) -> build.Firmware:
        return make(artifact, BOARDS[job.accelerator], Path(scratch.name), int(stack_bytes))

    return Runtime(name, lambda artifact: _load(job, artifact, built))


def _load(job: Job, artifact: Path, built: Callable[[Path], build.Firmware]) -> Executable:
    try:
        firmware = built(artifact)
        model, wanted = firmware.model, tuple(file.spec for file in job.samples[0])
        inputs = match(job, "input", wanted, model.inputs, [[spec.name for spec in model.inputs]])
        outputs = match(job, "output", job.outputs, model.outputs, [[spec.name for spec in model.outputs]])
        return _Loaded(firmware, process.Running(firmware, BOARDS[job.accelerator]), inputs, outputs)
    except ConversionError as error:
        raise RunnerError(error.message, error.hint, stage="prepare") from error
    except RunnerError:
        raise
    except EdgekitError as error:
        raise RunnerError(error.message, error.hint, stage="model") from error


class _Loaded:
    def __init__(self, firmware: build.Firmware, running: process.Running, inputs: list[int], outputs: list[int]) -> None:
        self._firmware, self._running, self._inputs, self._outputs = firmware, running, inputs, outputs
        self._fed: list[bytes] = []
        self._last = process.Inference(b"", 0, 0)
        weakref.finalize(self, running.close)

    def set_inputs(self, arrays: Sequence[Array]) -> None:
        by_place = dict(zip(self._inputs, arrays, strict=True))
        self._fed = [by_place[i].tobytes() for i in range(len(by_place))]

    def invoke(self) -> None:
        self._last = self._running.run(self._fed)

    def outputs(self) -> Sequence[Array]:
        arrays, at = [], 0
        for spec in self._firmware.model.outputs:
            arrays.append(np.frombuffer(self._last.outputs, np.dtype(spec.dtype), spec.elements, at).reshape(spec.shape))
            at += build.tensor_bytes(spec)
        return [arrays[i] for i in self._outputs]

    def delegation(self) -> Delegation | None:
        return None

    def counters(self) -> dict[str, int]:
        sizes, last = self._firmware.sizes, self._last
        memory = {} if self._firmware.interpreter.ready_made else {"flash_bytes": sizes.flash_bytes, "sram_bytes": sizes.sram_bytes}
        return {
            "instructions": last.instructions,
            **memory,
            "arena_bytes": self._running.arena_bytes or self._firmware.model.arena_bytes,
            "stack_bytes": last.stack_bytes,
            "stack_reserved_bytes": sizes.stack_reserved_bytes,
        }
