"""TensorFlow Lite Micro on this machine: the interpreter of the package tflite-micro, with TFLM's reference kernels compiled for the host.

It computes what the kernels compute, but nothing runs on a microcontroller: no instruction counts, no flash. Counter: `arena_bytes`, the
arena that TFLM's allocator used here, where pointers have 64 bits; a 32-bit core needs less.

With an accelerator that names an emulated core, firmware with the interpreter runs on that core: compiled from a source tree of TFLM
(`EDGEKIT_TFLM`), or for Cortex-M55 ready-made (`edgekit.virtual.cortex_m.tflm_image`).
"""

from __future__ import annotations

import functools
import os
import re
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from edgekit import decimals
from edgekit.budget import tflm_scratch
from edgekit.embed import tflm as embed_tflm
from edgekit.errors import EdgekitError, MissingPackageError, RunnerError, require
from edgekit.formats import tflite_flatbuffer, tflite_reader, tflm
from edgekit.graph import Graph
from edgekit.hostruntimes import Executable, Runtime, _core, check_options, match
from edgekit.job import Delegation, Job
from edgekit.tensors import Array, Signature, TensorSpec
from edgekit.virtual.cortex_m import build, tflm_image
from edgekit.virtual.cortex_m import tflm as tree
from edgekit.virtual.cortex_m.boards import BOARDS, Board

_TOTAL = re.compile(rb"Arena allocation total (\d+) bytes")


def open(job: Job) -> Runtime:
    """Import the interpreter. Raises `RunnerError`: stage `library` when absent, `prepare` for an accelerator or an option."""
    if job.accelerator in BOARDS:
        return _on_core(job)
    try:
        require("tflite_micro.python.tflite_micro.runtime", extra="mcu", purpose="running a model in TFLM")
    except MissingPackageError as error:
        raise RunnerError(error.message, error.hint, stage="library") from error
    if job.accelerator != "cpu":
        raise RunnerError(f"the runtime tflm has no accelerator {job.accelerator!r}: it runs on the host's cpu", stage="prepare")
    check_options(job, ("arena_bytes",))
    arena = job.options.get("arena_bytes", "")
    if arena and not (decimals.is_whole(arena) and 0 < int(arena) < 1 << 31):
        raise RunnerError(f"option arena_bytes: {arena!r} is not a size", stage="prepare")
    version = f"{metadata.version('tflite-micro')}, interpreter on the host ({tree.VARIABLE} runs it on a core)"
    return Runtime(version, lambda artifact: _load(job, artifact, int(arena or 0) or None))


def _on_core(job: Job) -> Runtime:
    if not tree.on_core(job.accelerator):
        hint = f"{tree.VARIABLE}=FOLDER, or for {tflm_image.CORE} {tree.VARIABLE}={tflm_image.PACKAGE}"
        raise RunnerError(f"TFLM runs on {job.accelerator} from a source tree only", hint, stage="library")
    version = "interpreter on the core"
    if tree.tree() is None:
        version += f", {tflm_image.VERSION}"
        try:
            tflm_image.path()
        except MissingPackageError as error:
            raise RunnerError(error.message, error.hint, stage="library") from error
    return _core.open(job, functools.partial(_firmware, job), version, ("arena_bytes",))


def _firmware(job: Job, artifact: Path, board: Board, scratch: Path, stack_bytes: int) -> build.Firmware:
    """Firmware of a `.tflite`, whose arena is what the interpreter takes here, and at most what CMSIS-NN's kernels ask for besides."""
    file, (inputs, outputs) = tflite_reader.read(artifact), _graph_ends(artifact)
    signature = Signature(tuple(_in_order(file.graph, inputs, file.entry.inputs)[0]), tuple(_in_order(file.graph, outputs, file.entry.outputs)[0]))
    scratch_bytes = tflm_scratch.extra_bytes(file.graph, (tflm_scratch.MVE if board.core == "cortex-m55" else tflm_scratch.DSP,))
    arena_bytes = int(job.options.get("arena_bytes") or tflm.arena_bytes(artifact, signature) + scratch_bytes)
    made, root = scratch / "model", tree.tree()
    made.mkdir()
    embed_tflm.write(artifact.read_bytes(), file.graph, signature, -(-arena_bytes // 16) * 16, made)
    behind = tree.interpreter(root, made, board, scratch) if root else _ready_made(board, scratch, file.graph)
    return build.build(made / "src", board, scratch, stack_bytes, behind)


def _ready_made(board: Board, scratch: Path, graph: Graph) -> build.Interpreter:
    codes = vars(tflite_flatbuffer.schema().BuiltinOperator)
    operators = sorted({codes[operator.type] for operator in graph.operators if not operator.custom})
    return tflm_image.interpreter(board, scratch, operators, embed_tflm.variables(graph))


def _graph_ends(artifact: Path) -> tuple[list[int], list[int]]:
    """Inputs and outputs of the main graph by tensor, in its order."""
    subgraph = tflite_flatbuffer.schema().Model.GetRootAs(artifact.read_bytes(), 0).Subgraphs(0)
    return subgraph.InputsAsNumpy().tolist(), subgraph.OutputsAsNumpy().tolist()


def _load(job: Job, artifact: Path, arena_bytes: int | None) -> Executable:
    runtime = require("tflite_micro.python.tflite_micro.runtime", extra="mcu", purpose="running a model in TFLM")
    try:
        file = tflite_reader.read(artifact)
    except EdgekitError as error:
        raise RunnerError(error.message, error.hint, stage="model") from error
    try:
        interpreter = runtime.Interpreter.from_file(str(artifact), arena_size=arena_bytes or tflm.ample_bytes(artifact))
    except (RuntimeError, ValueError) as error:
        raise RunnerError(f"TFLM could not prepare the model: {error}", "no kernel, or too small an arena", stage="prepare") from error
    wanted = tuple(x.spec for x in job.samples[0])
    first, last = _graph_ends(artifact)
    known, tensors = _in_order(file.graph, first, file.entry.inputs)
    inputs = match(job, "input", wanted, known, [[x.name for x in known], tensors])
    made, tensors = _in_order(file.graph, last, file.entry.outputs)
    outputs = match(job, "output", job.outputs, made, [[x.name for x in made], tensors])
    return _Loaded(interpreter, inputs, outputs)


def _in_order(graph: Graph, order: Sequence[int], ports: Sequence[tflite_reader.Port]) -> tuple[list[TensorSpec], list[str]]:
    """The signature's tensors and the tensors' own names in the order of the graph, which is all that TFLM knows."""
    by_tensor = {port.tensor: port for port in ports}
    specs = [TensorSpec(by_tensor[i].name, by_tensor[i].stored_shape, by_tensor[i].dtype) for i in order]
    return specs, [graph.tensors[i].name for i in order]


class _Loaded:
    def __init__(self, interpreter: Any, inputs: list[int], outputs: list[int]) -> None:
        self._interpreter, self._inputs, self._outputs = interpreter, inputs, outputs
        self.invoke = interpreter.invoke

    def set_inputs(self, arrays: Sequence[Array]) -> None:
        for index, array in zip(self._inputs, arrays, strict=True):
            self._interpreter.set_input(array, index)

    def outputs(self) -> Sequence[Array]:
        return [np.array(self._interpreter.get_output(index)) for index in self._outputs]

    def delegation(self) -> Delegation | None:
        return None

    def counters(self) -> dict[str, int]:
        found = _TOTAL.search(_said(self._interpreter.print_allocations))
        return {"arena_bytes": int(found[1])} if found else {}


def _said(call: Any) -> bytes:
    """What native code writes to stderr during a call: it knows no other way to tell."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        try:
            os.dup2(file.fileno(), 2)
            call()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return file.read()
