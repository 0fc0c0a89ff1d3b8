"""From a model to a fully integer `.tflite` with what it takes of flash and SRAM: the order of the steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from edgekit.backends import Artifact, Candidate, Context, integer_model
from edgekit.backends.litert_micro import vela
from edgekit.budget import Part, format_size, memory, model_part, tflm_kernels, tflm_scratch
from edgekit.errors import EdgekitError
from edgekit.formats import Model, tflite, tflm, tflm_agreement
from edgekit.graph import Graph
from edgekit.legalize import tflite_columns, tflite_tidy

ARENA = "arena"
COMPARED = 4
"""Samples, and as many random inputs, on which TFLM is compared with LiteRT's reference kernels."""
COMPILED = "-npu"
RECORDS_BYTES = 1024
"""What the interpreter keeps of a graph that the NPU takes whole: firmware of four operators took 1,000 bytes of arena on a Cortex-M4."""


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Let the quantizer read the model once; the result finishes one candidate a call. An integer model keeps its integers."""
    build = integer_model.prepare(model, context)
    return lambda candidate: _finish(*build(candidate), context)


def integers(path: Path) -> Path:
    """The integer model that an artifact was compiled from: itself where there is no NPU."""
    beside = path.with_name(path.name.removesuffix(f"{COMPILED}.tflite") + ".tflite")
    return beside if path.name.endswith(f"{COMPILED}.tflite") else path


def _finish(made: Artifact, graph: Graph, context: Context) -> Artifact:
    if "npu" in context.target.options:
        return _compiled(made, context)
    names = tflite_columns.drop_unreached(made.path)
    tflite_tidy.drop_unread(made.path)
    said = tuple(f"{name}: columns that the layer does not reach are left out, which CMSIS-NN with MVE would compute with" for name in names)
    made = dataclasses.replace(made, notices=(*made.notices, *said))
    return _interpreted(made, tflite.graph(made.path) if names else graph, context)


def _compiled(made: Artifact, context: Context) -> Artifact:
    """The operators that the NPU takes, compiled for it; TFLM runs the rest. Nothing here runs the NPU: every figure is vela's estimate."""
    options = context.target.options
    found = vela.compile(made.path, options)
    records = _records_bytes(made) if found.left else RECORDS_BYTES
    path = made.path.with_name(f"{made.path.stem}{COMPILED}.tflite")
    found.path.replace(path)
    stack = options.get("stack_bytes", 0)
    parts = (
        model_part(path, f"model ({made.candidate.precision})"),
        *tflm_kernels.kernels(tflite.graph(path), options.get("core", ""), context.target.delegates),
        Part(ARENA, "arena", found.sram_bytes, 0, "estimated", "vela"),
        Part("interpreter's records", "arena", records, 0, "estimated", "TFLM's interpreter here, before the NPU took its operators: at most"),
        Part("arena margin", "arena", options.get("arena_margin_bytes", 0), 0, "estimated", "target profile"),
        Part("stack", "arena", stack, 0, "estimated", "target profile"),
    )
    unproven = "outputs here are those of the integer model before it was compiled: no NPU runs on this machine"
    said = (*made.notices, found.said(options["npu"]), unproven)
    return dataclasses.replace(made, path=path, parts=parts, notices=said)


def _records_bytes(made: Artifact) -> int:
    """What the arena of the whole integer model holds besides activations: state, and records of operators, of which fewer are left to the CPU."""
    peak = memory.peak(tflite.graph(made.path))
    arena = tflm.arena_bytes(made.path, made.signature) - (peak.live_bytes if peak else 0)
    return -(-max(arena, RECORDS_BYTES) // 16) * 16


def _interpreted(made: Artifact, graph: Graph, context: Context) -> Artifact:
    options = context.target.options
    arena = tflm.arena_bytes(made.path, made.signature)
    margin, stack = options.get("arena_margin_bytes", 0), options.get("stack_bytes", 0)
    scratch, asks = tflm_scratch.extra_bytes(graph, context.target.delegates), tflm_scratch.source(context.target.delegates)
    said = f"arena {format_size(arena)}, measured by TFLM here, whose pointers of 64 bits take more than a core's; {_above(scratch, asks, margin)}"
    parts = (
        model_part(made.path, f"model ({made.candidate.precision})"),
        *tflm_kernels.kernels(graph, options.get("core", ""), context.target.delegates),
        Part(ARENA, "arena", -(-arena // 16) * 16, 0, "measured", "TFLM's interpreter here"),
        *([Part(f"scratch of {asks}", "arena", -(-scratch // 16) * 16, 0, "estimated", f"{asks}'s buffer sizes")] if scratch else []),
        Part("arena margin", "arena", margin, 0, "estimated", "target profile"),
        Part("stack", "arena", stack, 0, "estimated", "target profile"),
    )
    return dataclasses.replace(made, parts=parts, notices=(*made.notices, said, *_agreement(made, graph, context)))


def _agreement(made: Artifact, graph: Graph, context: Context) -> tuple[str, ...]:
    """Whether a desktop's reference kernels give the bytes that devices are held to."""
    try:
        return (tflm_agreement.compare(made.path, made.signature, context.calibration[:COMPARED], COMPARED).said(graph),)
    except EdgekitError as error:
        return (f"TFLM and LiteRT's reference kernels were not compared: {error.message}",)


def _above(scratch_bytes: int, asks: str, margin_bytes: int) -> str:
    """What is declared above the measured arena."""
    scratch = f"scratch of {asks}'s kernels, estimated at most {scratch_bytes:,} bytes, and " if scratch_bytes else ""
    return f"above it {scratch}a margin of {margin_bytes:,} bytes"


def arena_bytes(parts: Sequence[Part]) -> int:
    """The arena to declare: measured, with the margin."""
    return sum(part.installed_bytes for part in parts if part.category == "arena" and part.name != "stack")
