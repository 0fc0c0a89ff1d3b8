"""Running a model segment by segment over all samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from edgekit.backends.litert import running, signatures
from edgekit.backends.litert.source import Source
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize.grid import Affine
from edgekit.quantize.stream import Stream
from edgekit.tensors import Array, Signature, TensorSpec


def over(source: Source, model: Any, grids: Mapping[str, Affine] | None = None) -> Stream[int]:
    """All samples at the beginning of the main graph, whose operators then run with their constants as they are at that time."""
    graph, signature = model.subgraphs[0], source.model.signature
    inputs, _ = signatures.edges(model, signature)
    dtypes = {index: flatbuffer.numpy_dtype(graph.tensors[index].type) for index in inputs}
    edges = list(zip(signature.inputs, inputs, strict=True))
    fed = ({index: sample[spec.name].astype(dtypes[index]) for spec, index in edges} for sample in source.samples)

    def stretch(start: int, stop: int, first: Mapping[int, Array], kept: Sequence[int]) -> Callable[[Mapping[int, Array]], dict[int, Array]]:
        session = _segment(model, start, stop, sorted(first), list(kept))
        return lambda values: {int(name): array for name, array in session.run({str(i): array for i, array in values.items()}).items()}

    operators = [(_there(op.inputs), _there(op.outputs)) for op in graph.operators]
    return Stream(operators, _there(graph.outputs), fed, _by_index(model, grids or {}), source.context.workdir, stretch)


def _there(tensors: Iterable[int]) -> list[int]:
    """Without those that an operator may leave out."""
    return [int(index) for index in tensors if index >= 0]


def _by_index(model: Any, grids: Mapping[str, Affine]) -> dict[int, Affine]:
    names = {index: flatbuffer.text(model.subgraphs[0].tensors[index].name) for index in running.activations(model)}
    return {index: grids[name] for index, name in names.items() if name in grids}


def _segment(model: Any, start: int, end: int, read: list[int], kept: list[int]) -> running.Interpreter:
    content = running.cut(model, start, end, read, kept)
    names = tuple(tuple(TensorSpec(str(i), (), "float32") for i in indices) for indices in (read, kept))
    return running.Interpreter(content, Signature(*names), edges=(read, kept))
