"""Arm's compiler for Ethos-U (package ethos-u-vela): operators of an integer `.tflite` become command streams; what that costs is its estimate."""

from __future__ import annotations

import csv
import dataclasses
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from edgekit.errors import ConversionError, require
from edgekit.formats import tflite

NPU = "ethos-u"
_TIMEOUT_S = 600


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiled file and vela's estimates; `left` counts the operators that stay on the CPU, by type."""

    path: Path
    cycles: int
    npu_cycles: int
    sram_bytes: int
    operators: int
    left: dict[str, int]

    def said(self, accelerator: str) -> str:
        """One sentence with every figure, as the estimate it is."""
        cpu = ", ".join(f"{count} {kind}" for kind, count in sorted(self.left.items())) or "none"
        split = f"{self.operators - sum(self.left.values())} of {self.operators} operators on the NPU, on the CPU: {cpu}"
        cost = f"{self.cycles:,} cycles ({self.npu_cycles:,} of the NPU itself), {self.sram_bytes:,} bytes of SRAM"
        return f"{accelerator}, estimated by vela: {cost}; {split}"


def compile(path: Path, options: dict[str, Any]) -> Compiled:
    """Compile an integer model for the NPU of a profile's options. Raises `ConversionError` with vela's reason."""
    require("ethosu.vela", extra="mcu", purpose="compiling for Ethos-U")
    out = path.with_name(path.stem + "-vela")
    arguments = ["--accelerator-config", options["npu"], "--system-config", options["npu_system"], "--memory-mode", options["npu_memory"]]
    command = [sys.executable, "-m", "ethosu.vela", "--config", "Arm/vela.ini", *arguments, "--output-dir", str(out), str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConversionError(f"vela did not end within {_TIMEOUT_S} s") from error
    compiled, summaries = out / f"{path.stem}_vela.tflite", list(out.glob("*_summary_*.csv"))
    if done.returncode != 0 or not compiled.is_file() or not summaries:
        said = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()] or ["no reason given"]
        raise ConversionError(f"vela cannot compile {path.name}: {said[-1][:300]}", "package for mcu-cortex-m55: the core alone")
    with summaries[0].open(newline="") as file:
        row = next(csv.DictReader(file))
    left = Counter(operator.type for operator in tflite.graph(compiled).operators if operator.type != NPU)
    sram = round(float(row["sram_memory_used"]) * 1024)
    return Compiled(compiled, int(row["cycles_total"]), int(row["cycles_npu"]), sram, len(tflite.graph(path).operators), dict(left))
