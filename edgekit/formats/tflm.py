"""A `.tflite` in TensorFlow Lite Micro's interpreter on this machine (package tflite-micro): what its kernels compute, what arena it takes."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgekit.budget import memory
from edgekit.errors import ConversionError, require
from edgekit.formats import tflite_flatbuffer, tflite_reader, tflm_arena
from edgekit.tensors import Array, Arrays, Signature

_TOTAL = re.compile(rb"Arena allocation total (\d+) bytes")
_REASONS = (
    (re.compile(r"Didn't find op for builtin opcode '?(\w+)"), "TFLM has no kernel for {0}"),
    (re.compile(r"Failed to (?:resize buffer|allocate)[^\n]*"), "the arena is too small: {0}"),
)


class Interpreter:
    """A model in TFLM, by `signature`'s names and in stored types. State is carried from run to run; a new one starts afresh.

    Raises `ConversionError` when TFLM does not take the model, or `arena_bytes` (by default `ample_bytes`) is too small.
    """

    def __init__(self, path: Path, signature: Signature, arena_bytes: int | None = None) -> None:
        runtime = require("tflite_micro.python.tflite_micro.runtime", extra="mcu", purpose="running a model in TensorFlow Lite Micro")
        self.signature = signature
        size = arena_bytes or ample_bytes(path)
        made, said = _listened(lambda: _caught(lambda: runtime.Interpreter.from_file(str(path), arena_size=size)))
        if isinstance(made, Exception):
            hint = "'edgekit inspect MODEL --target T' lists its operators"
            raise ConversionError(f"{path.name}: TFLM cannot prepare it: {_reason(said, made)}", hint)
        self._interpreter: Any = made
        self._inputs, self._outputs = _places(path, signature)

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Outputs by name for one sample. Raises `ConversionError` when a kernel fails."""
        import numpy as np

        for spec, place in zip(self.signature.inputs, self._inputs, strict=True):
            self._interpreter.set_input(np.asarray(inputs[spec.name], order="C"), place)
        failed, said = _listened(lambda: _caught(self._interpreter.invoke))
        if isinstance(failed, Exception):
            raise ConversionError(f"TFLM fails on the model: {_reason(said, failed)}")
        return {spec.name: np.array(self._interpreter.get_output(place)) for spec, place in zip(self.signature.outputs, self._outputs, strict=True)}

    def arena_bytes(self) -> int:
        """The arena that TFLM's allocator used here. Pointers have 64 bits on this machine: a 32-bit core needs less."""
        _, said = _listened(self._interpreter.print_allocations)
        found = _TOTAL.search(said)
        if found is None:
            raise ConversionError("TFLM did not say what its arena takes")
        return int(found[1])


def ample_bytes(path: Path) -> int:
    """An arena that is large enough: TFLM's package takes ten times the file, and few weights on a large image need more than that."""
    graph = tflite_reader.read(path).graph
    return 10 * graph.file_bytes + sum(memory.size(tensor) for tensor in graph.tensors if not tensor.constant) + (1 << 20)


def arena_bytes(path: Path, signature: Signature) -> int:
    """The smallest arena, in steps of `tflm_arena.STEP_BYTES`, in which the interpreter here prepares the model and runs.

    That is at times more than its allocator says it used: planning takes memory of its own, which is free again when the model runs.
    """
    return tflm_arena.smallest(path, Interpreter(path, signature).arena_bytes())


def _places(path: Path, signature: Signature) -> tuple[list[int], list[int]]:
    """For every tensor of `signature` its position in the graph, which is all that TFLM knows."""
    file = tflite_reader.read(path)
    graph = tflite_flatbuffer.load(path.read_bytes(), path.name).subgraphs[0]
    known = {port.name: port.tensor for port in (*file.entry.inputs, *file.entry.outputs)}
    sides = ((list(graph.inputs), signature.inputs), (list(graph.outputs), signature.outputs))
    found = [[order.index(known[s.name]) if s.name in known else i for i, s in enumerate(specs)] for order, specs in sides]
    return found[0], found[1]


def _caught(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (RuntimeError, ValueError) as error:
        return error


def _reason(said: bytes, error: Exception) -> str:
    text = said.decode("utf-8", "replace")
    for pattern, sentence in _REASONS:
        if found := pattern.search(text):
            return sentence.format(found[1] if pattern.groups else found[0])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-2:]) or str(error)


def _listened(call: Callable[[], Any]) -> tuple[Any, bytes]:
    """What `call` returns, and what native code writes to stderr meanwhile: it knows no other way to tell."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        try:
            os.dup2(file.fileno(), 2)
            result = call()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return result, file.read()
