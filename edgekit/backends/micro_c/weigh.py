"""What generated C takes of flash and SRAM on its core, beside what TFLM would take for the same integers."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from edgekit.backends import Artifact
from edgekit.budget import Limits, Part, runtime_parts, tflm_kernels, tflm_scratch
from edgekit.embed import c_text
from edgekit.errors import ConversionError, EdgekitError, MissingPackageError
from edgekit.formats import tflm
from edgekit.graph import Graph
from edgekit.target import Target, load
from edgekit.virtual.cortex_m.boards import BOARDS
from edgekit.virtual.cortex_m.build import compiler, read_model
from edgekit.virtual.cortex_m.elf import Sizes, sizes

M0PLUS = ("-mcpu=cortex-m0plus", "-mfloat-abi=soft")
CODE_BYTES = 40_000
"""Code of a net with convolutions, with or without CMSIS-NN: taken where no compiler is at hand to measure it."""
_TIMEOUT_S = 300


def parts(artifact: Artifact, made: Artifact, graph: Graph, target: Target, limits: Limits) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Parts of flash and of memory at run time, and what to say about them; `made` is the integer `.tflite`."""
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
    return rows, (*said, *compared(rows, made, graph, target, stack, limits))


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


def compared(rows: tuple[Part, ...], made: Artifact, graph: Graph, target: Target, stack: int, limits: Limits) -> tuple[str, ...]:
    """One sentence on both ways, when TFLM is at hand, and which of them fits where flash or SRAM is limited."""
    try:
        other = load(target.name.removesuffix("-c"))
        arena = tflm.arena_bytes(made.path, made.signature) + tflm_scratch.extra_bytes(graph, other.delegates)
        arena += int(other.options.get("arena_margin_bytes", 0)) + stack
        kernels = sum(p.installed_bytes for p in tflm_kernels.kernels(graph, other.options.get("core", ""), other.delegates))
        flash = made.path.stat().st_size + kernels + sum(p.installed_bytes for p in runtime_parts(other))
    except EdgekitError as error:
        return (f"TFLM was not compared: {error.message}",)
    ours = [sum(p.installed_bytes for p in rows if (p.category == "arena") == run) for run in (False, True)]
    less = [what for what, a, b in (("flash", ours[0], flash), ("SRAM", ours[1], arena)) if a < b]
    verdict = f"generated C needs less {' and '.join(less)}" if less else f"{other.name} needs less of both"
    verdict += _fitting({"generated C": (ours[0], ours[1]), f"TFLM ({other.name})": (flash, arena)}, limits)
    return (f"generated C: flash {ours[0]:,} bytes, SRAM {ours[1]:,}; TFLM: flash {flash:,} (estimated), SRAM {arena:,} (upper bound): {verdict}",)


def _fitting(ways: dict[str, tuple[int, int]], limits: Limits) -> str:
    """Which ways (flash and SRAM in bytes) are within the limits; empty where there are none."""
    most = (limits.max_flash_bytes, limits.max_sram_bytes)
    if most == (None, None):
        return ""
    fit = [name for name, used in ways.items() if all(limit is None or n <= limit for n, limit in zip(used, most, strict=True))]
    return "; both fit" if len(fit) == len(ways) else f"; only {fit[0]} fits" if fit else "; neither fits"
