"""Running a model segment by segment over all samples: each segment sees what the segments before it, as they are now, have made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edgekit.backends.litert import running, signatures
from edgekit.backends.litert.source import Source
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize.grid import Affine
from edgekit.quantize.shelf import Shelf
from edgekit.tensors import Array, Signature, TensorSpec


class Stream:
    """All samples at one place of the main graph: behind the operators run so far, with the tensors that later operators read.

    Tensors that `grids` names are rounded to them as soon as they are computed, as integer kernels leave them.
    """

    def __init__(self, source: Source, model: Any, grids: Mapping[str, Affine] | None = None) -> None:
        self._model, self._place = model, 0
        self._shelf = Shelf[int](source.context.workdir)
        self._grids = _by_index(model, grids or {})
        self._last_use = _last_uses(model)
        inputs, _ = signatures.edges(model, source.model.signature)
        for number, sample in enumerate(source.samples):
            for spec, index in zip(source.model.signature.inputs, inputs, strict=True):
                dtype = flatbuffer.numpy_dtype(model.subgraphs[0].tensors[index].type)
                self._put(number, index, sample[spec.name].astype(dtype))
        self._samples, self._live = len(source.samples), set(inputs)

    def advance(self, place: int) -> None:
        """Run the operators up to `place` (exclusive) with their constants as they are now."""
        for stop in self._stops(place):
            self._run(stop)

    def _stops(self, place: int) -> list[int]:
        """Where to stop on the way to `place`: behind each operator whose output is rounded."""
        operators = self._model.subgraphs[0].operators
        return [n + 1 for n in range(self._place, place - 1) if self._grids.keys() & {int(i) for i in operators[n].outputs}] + [place]

    def _run(self, place: int) -> None:
        operators = self._model.subgraphs[0].operators[self._place : place]
        if not operators:
            return
        made = {int(i) for op in operators for i in op.outputs if i >= 0}
        read = sorted({int(i) for op in operators for i in op.inputs if i >= 0} & self._live)
        kept = sorted(i for i in made if self._last_use.get(i, -1) >= place)
        session = _segment(self._model, self._place, place, read, kept) if kept else None
        for number in range(self._samples):
            results = session.run({str(i): self._shelf.get(number, i) for i in read}) if session else {}
            for name, array in results.items():
                self._put(number, int(name), array)
        done = {i for i in self._live if self._last_use.get(i, -1) < place}
        for number in range(self._samples):
            for index in done:
                self._shelf.drop(number, index)
        self._live, self._place = (self._live - done) | set(kept), place

    def values(self, index: int) -> Iterator[Array]:
        """A live tensor, sample by sample."""
        for number in range(self._samples):
            yield self._shelf.get(number, index)

    def _put(self, number: int, index: int, array: Array) -> None:
        grid = self._grids.get(index)
        self._shelf.put(number, index, array if grid is None else grid.round(array).astype(array.dtype))

    def close(self) -> None:
        """Forget everything, files included."""
        self._shelf.clear()


def _by_index(model: Any, grids: Mapping[str, Affine]) -> dict[int, Affine]:
    names = {index: flatbuffer.text(model.subgraphs[0].tensors[index].name) for index in running.activations(model)}
    return {index: grids[name] for index, name in names.items() if name in grids}


def _last_uses(model: Any) -> dict[int, int]:
    graph = model.subgraphs[0]
    uses: dict[int, int] = {int(i): len(graph.operators) for i in graph.outputs}
    for position, op in enumerate(graph.operators):
        uses |= {int(i): max(position, uses.get(int(i), 0)) for i in op.inputs if i >= 0}
    return uses


def _segment(model: Any, start: int, end: int, read: list[int], kept: list[int]) -> running.Interpreter:
    content = running.cut(model, start, end, read, kept)
    names = tuple(tuple(TensorSpec(str(i), (), "float32") for i in indices) for indices in (read, kept))
    return running.Interpreter(content, Signature(*names), edges=(read, kept))
