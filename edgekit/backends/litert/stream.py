"""Running a model segment by segment over all samples: each segment sees what the segments before it, as they are now, have made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgekit.backends.litert import running, signatures
from edgekit.backends.litert.source import Source
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.tensors import Array, Signature, TensorSpec

MEMORY_BYTES = 256_000_000
"""Live activations of all samples are kept in memory up to this; beyond it they lie in files of the work folder."""


class Stream:
    """All samples at one place of the main graph: behind the operators run so far, with the tensors that later operators read."""

    def __init__(self, source: Source, model: Any) -> None:
        self._model, self._shelf, self._place = model, _Shelf(source.context.workdir), 0
        self._last_use = _last_uses(model)
        inputs, _ = signatures.edges(model, source.model.signature)
        for number, sample in enumerate(source.samples):
            for spec, index in zip(source.model.signature.inputs, inputs, strict=True):
                dtype = flatbuffer.numpy_dtype(model.subgraphs[0].tensors[index].type)
                self._shelf.put(number, index, sample[spec.name].astype(dtype))
        self._samples, self._live = len(source.samples), set(inputs)

    def advance(self, place: int) -> None:
        """Run the operators up to `place` (exclusive) with their constants as they are now."""
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
                self._shelf.put(number, int(name), array)
        done = {i for i in self._live if self._last_use.get(i, -1) < place}
        for number in range(self._samples):
            for index in done:
                self._shelf.drop(number, index)
        self._live, self._place = (self._live - done) | set(kept), place

    def values(self, index: int) -> Iterator[Array]:
        """A live tensor, sample by sample."""
        for number in range(self._samples):
            yield self._shelf.get(number, index)

    def close(self) -> None:
        """Forget everything, files included."""
        self._shelf.clear()


class _Shelf:
    def __init__(self, folder: Path) -> None:
        self._folder, self._held, self._bytes = folder, dict[tuple[int, int], Any](), 0

    def put(self, sample: int, tensor: int, array: Array) -> None:
        import numpy as np

        if self._bytes + array.nbytes <= MEMORY_BYTES:
            self._bytes += array.nbytes
            self._held[sample, tensor] = array
            return
        path = self._folder / f"activation-{sample}-{tensor}.npy"
        np.save(path, array)
        self._held[sample, tensor] = path

    def get(self, sample: int, tensor: int) -> Array:
        import numpy as np

        held = self._held[sample, tensor]
        return np.load(held) if isinstance(held, Path) else held  # type: ignore[no-any-return]  # an array

    def drop(self, sample: int, tensor: int) -> None:
        held = self._held.pop((sample, tensor), None)
        if isinstance(held, Path):
            held.unlink()
        elif held is not None:
            self._bytes -= held.nbytes

    def clear(self) -> None:
        for sample, tensor in list(self._held):
            self.drop(sample, tensor)


def _last_uses(model: Any) -> dict[int, int]:
    graph = model.subgraphs[0]
    uses: dict[int, int] = {}
    for position, op in enumerate(graph.operators):
        uses |= {int(i): position for i in op.inputs if i >= 0}
    return uses


def _segment(model: Any, start: int, end: int, read: list[int], kept: list[int]) -> running.Interpreter:
    content = running.cut(model, start, end, read, kept)
    names = tuple(tuple(TensorSpec(str(i), (), "float32") for i in indices) for indices in (read, kept))
    return running.Interpreter(content, Signature(*names), edges=(read, kept))
