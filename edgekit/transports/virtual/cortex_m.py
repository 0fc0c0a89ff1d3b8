"""Emulated microcontrollers: `virtual:cortex-m4` and its like. Each job is a process that builds the firmware and runs it in QEMU."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from edgekit import job as contract
from edgekit.errors import RunnerError, UsageError
from edgekit.transports import Facts, local
from edgekit.virtual.cortex_m import tflm
from edgekit.virtual.cortex_m.boards import BOARDS, PROGRAMS

_ON_THE_CORE = "micro-c"
_INTERPRETER = "tflm"
_BESIDE_NPU = "tflm-ethos-u"
"""Asked of this machine, which says why it cannot be run."""


def connect(name: str, options: Mapping[str, Any]) -> VirtualCore:
    """The emulated core `name`. Raises `UsageError` for an option: it has none."""
    if options:
        raise UsageError(f"virtual:{name} has no option {next(iter(options))!r}", "it takes none")
    return VirtualCore(name)


def missing() -> tuple[str, ...]:
    """What this machine lacks to build firmware and run it."""
    return tuple(f"{program}: apt-get install {package}" for program, package in PROGRAMS.items() if shutil.which(program) is None)


class VirtualCore:
    """An emulated board. It keeps nothing between jobs."""

    def __init__(self, core: str) -> None:
        self._board = BOARDS[core]
        self._host = local.connect("", {})

    def facts(self) -> Facts:
        """What the emulated board is."""
        board = self._board
        return Facts(
            identity=f"virtual-{board.core}",
            os="none",
            abi=board.abi,
            platform=board.core,
            runner="python",
            model=board.machine,
            soc=board.core,
            cores=1,
            memory_bytes=board.ram.size_bytes,
            emulated=True,
            details={"flash_bytes": str(board.flash_bytes), "sram_bytes": str(board.ram.size_bytes)},
        )

    def execute(self, job: Path, result: Path, timeout_s: float) -> None:
        """Run a job folder on the core: generated C, and TFLM's interpreter where that is at hand (`tflm.on_core`); else it runs beside it.

        No latency is taken: how long emulation takes says nothing of a chip. Raises what `local:` raises, `RunnerError` for another runtime.
        """
        asked = contract.read_job(job)
        if asked.runtime not in (_ON_THE_CORE, _INTERPRETER, _BESIDE_NPU):
            raise RunnerError(f"{self._board.core} runs {_ON_THE_CORE} and {_INTERPRETER}, not {asked.runtime}", stage="library")
        on_core = asked.runtime == _ON_THE_CORE or (asked.runtime == _INTERPRETER and tflm.on_core(self._board.core))
        accelerator = self._board.core if on_core else "cpu"
        with tempfile.TemporaryDirectory(prefix="edgekit-mcu-") as scratch:
            staged = Path(scratch, "job")
            shutil.copytree(job, staged)
            contract.write(staged, msgspec.structs.replace(asked, accelerator=accelerator, warmup_runs=0, min_runs=0))
            self._host.execute(staged, result, timeout_s)
        _keep(result)

    def close(self) -> None:
        """Nothing is held."""


def _keep(result: Path) -> None:
    """Drop times and memory, which are the emulator's; outputs and counters are the core's."""
    found = contract.read_result(result)
    contract.write(result, msgspec.structs.replace(found, load_cold_ns=None, load_warm_ns=None, sample_ns=(), peak_memory_bytes=None))
