"""What generated C takes of flash and SRAM on its core, beside what TFLM would take for the same integers."""

from __future__ import annotations

import dataclasses
import subprocess
import tempfile
from pathlib import Path

from edgekit.backends import Artifact
from edgekit.backends.micro_c import count
from edgekit.budget import Limits, Part, runtime_parts, tflm_kernels, tflm_scratch
from edgekit.embed import c_text
from edgekit.errors import ConversionError, EdgekitError, MissingPackageError
from edgekit.formats import tflm
from edgekit.graph import Graph
from edgekit.target import Target, load
from edgekit.tensors import Arrays
from edgekit.virtual.cortex_m.boards import BOARDS
from edgekit.virtual.cortex_m.build import compiler, read_model
from edgekit.virtual.cortex_m.elf import Sizes, sizes

M0PLUS = ("-mcpu=cortex-m0plus", "-mfloat-abi=soft")
CODE_BYTES = 40_000
"""Code of a net with convolutions, with or without CMSIS-NN: taken where no compiler is at hand to measure it."""
_TIMEOUT_S = 300


@dataclasses.dataclass(frozen=True)
class Way:
    """What a net takes one way: bytes of flash and SRAM, and how they are known; instructions of an inference, or why they were not counted."""

    name: str
    flash_bytes: int
    sram_bytes: int
    instructions: int | None = None
    flash_kind: str = ""
    sram_kind: str = ""
    uncounted: str = ""

    def said(self) -> str:
        """The figures in words."""
        flash, sram = (f" ({kind})" if kind else "" for kind in (self.flash_kind, self.sram_kind))
        counted = f"{self.instructions:,} instructions" if self.instructions is not None else f"instructions not counted ({self.uncounted})"
        return f"{self.name}: flash {self.flash_bytes:,} bytes{flash}, SRAM {self.sram_bytes:,}{sram}, {counted}"


def parts(
    artifact: Artifact, made: Artifact, graph: Graph, target: Target, limits: Limits, sample: Arrays | None = None
) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Parts of flash and of memory at run time, and what to say about them; `made` is the integer `.tflite`, `sample` (real values) is counted."""
    core, stack = target.options.get("core", ""), int(target.options.get("stack_bytes", 0))
    model = read_model(artifact.path)
    try:
        found = measure(artifact.path, core)
        flash = Part(f"code and weights ({made.candidate.precision})", "model", found.flash_bytes, found.flash_bytes, "measured", "arm-none-eabi-gcc")
        variables = Part("arena and variables", "arena", found.sram_bytes, 0, "measured", "arm-none-eabi-gcc")
        said: tuple[str, ...] = ()
    except MissingPackageError as error:
        weights = sum(tensor.stored_bytes for tensor in graph.tensors)
        flash = Part(f"code and weights ({artifact.candidate.precision})", "model", weights + CODE_BYTES, weights + CODE_BYTES, "estimated")
        variables = Part("arena", "arena", model.arena_bytes, 0, "measured", "bakenn's memory plan")
        said = (f"code size is estimated: {error.message}; {error.hint}",)
    rows = (
        flash,
        variables,
        Part("input and output buffers", "arena", c_text.buffer_bytes(artifact.signature), 0, "measured"),
        Part("stack", "arena", stack, 0, "estimated", "target profile"),
    )
    used = [sum(part.installed_bytes for part in rows if (part.category == "arena") == run) for run in (False, True)]
    ours = _counted(Way("generated C", used[0], used[1]), artifact, "micro-c", core, sample)
    try:
        other = _interpreted(made, graph, load(target.name.removesuffix("-c")), sample)
    except EdgekitError as error:
        return rows, (*said, f"TFLM was not compared: {error.message}")
    return rows, (*said, compared(ours, other, limits))


def compared(ours: Way, other: Way, limits: Limits) -> str:
    """One sentence on both ways: what each takes, which needs less of what, and which of them fits where flash or SRAM is limited."""
    less = [f"{one.name} needs less {' and '.join(what)}" for one, two in ((ours, other), (other, ours)) if (what := _less(one, two))]
    return f"{ours.said()}; {other.said()}: {', '.join(less) or 'they need the same'}{_fitting((ours, other), limits)}"


def measure(folder: Path, core: str) -> Sizes:
    """Link the model alone for a core, drop what is unused, and read the sizes.

    Raises `MissingPackageError` without the compiler, `ConversionError` when it refuses the code.
    """
    flags = M0PLUS if core == "cortex-m0plus" else BOARDS[core].flags
    includes = [f"-I{path}" for path in sorted({path.parent for path in folder.rglob("*.h")})]
    defines = [f"-D{name}" for name in read_model(folder).defines]
    with tempfile.TemporaryDirectory(prefix="edgekit-size-") as scratch:
        out = Path(scratch, "model.elf")
        link = ["-nostartfiles", "-specs=nosys.specs", "-Wl,--gc-sections", "-Wl,-e,edgekit_model_run", "-Wl,-u,edgekit_model_init", "-lm"]
        command = [compiler(), *flags, "-mthumb", "-std=gnu11", "-O2", "-ffunction-sections", "-fdata-sections", *defines, *includes]
        command += [*map(str, sorted(folder.rglob("*.c"))), *link, "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False)
        if done.returncode != 0:
            wrong = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr.strip()]
            raise ConversionError(f"the generated C does not compile for {core}: {wrong[0][-400:]}")
        return sizes(out)


def _interpreted(made: Artifact, graph: Graph, target: Target, sample: Arrays | None) -> Way:
    """The same integers in TFLM's interpreter. Raises `EdgekitError` where that is not at hand."""
    core = target.options.get("core", "")
    arena = tflm.arena_bytes(made.path, made.signature) + tflm_scratch.extra_bytes(graph, target.delegates)
    arena += int(target.options.get("arena_margin_bytes", 0)) + int(target.options.get("stack_bytes", 0))
    linked = (*tflm_kernels.kernels(graph, core, target.delegates), *runtime_parts(target))
    flash = made.path.stat().st_size + sum(part.installed_bytes for part in linked)
    return _counted(Way("TFLM", flash, arena, None, "estimated", "upper bound"), made, "tflm", core, sample)


def _counted(way: Way, artifact: Artifact, runtime: str, core: str, sample: Arrays | None) -> Way:
    if sample is None:
        return dataclasses.replace(way, uncounted="no sample")
    try:
        found = count.instructions(artifact.path, runtime, core, artifact.signature, sample)
    except EdgekitError as error:
        return dataclasses.replace(way, uncounted=error.message)
    return dataclasses.replace(way, instructions=found)


def _less(one: Way, two: Way) -> tuple[str, ...]:
    figures = [("flash", one.flash_bytes, two.flash_bytes), ("SRAM", one.sram_bytes, two.sram_bytes)]
    if one.instructions is not None and two.instructions is not None:
        figures.append(("instructions", one.instructions, two.instructions))
    return tuple(what for what, a, b in figures if a < b)


def _fitting(ways: tuple[Way, ...], limits: Limits) -> str:
    """Which ways are within the limits; empty where there are none."""
    most = (limits.max_flash_bytes, limits.max_sram_bytes)
    if most == (None, None):
        return ""
    used = {way.name: (way.flash_bytes, way.sram_bytes) for way in ways}
    fit = [name for name, both in used.items() if all(limit is None or n <= limit for n, limit in zip(both, most, strict=True))]
    return "; both fit" if len(fit) == len(ways) else f"; only {fit[0]} fits" if fit else "; neither fits"
