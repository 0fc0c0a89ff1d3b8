"""Tensors that nothing of a `.tflite` reads or writes: TFLM gives them places in its arena, as large as if they were alive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgekit.formats import tflite_flatbuffer as flatbuffer


def drop_unread(path: Path) -> int:
    """Rewrite a file in place without such tensors; how many there were."""
    model = flatbuffer.load(path.read_bytes(), path.name)
    dropped = sum(_drop(model, number, graph) for number, graph in enumerate(model.subgraphs))
    if dropped:
        flatbuffer.merge_buffers(model, share=False)
        flatbuffer.write(path, flatbuffer.dump(model))
    return dropped


def _drop(model: Any, number: int, graph: Any) -> int:
    ports = [port for found in model.signatureDefs or [] if found.subgraphIndex == number for port in (*(found.inputs or []), *(found.outputs or []))]
    lists = [_indices(graph, "inputs"), _indices(graph, "outputs"), [int(port.tensorIndex) for port in ports]]
    lists += [_indices(o, name) for o in graph.operators for name in ("inputs", "outputs", "intermediates")]
    used = sorted({index for indices in lists for index in indices if index >= 0})
    if len(used) == len(graph.tensors):
        return 0
    place = {-1: -1} | {index: at for at, index in enumerate(used)}
    for holder in (graph, *graph.operators):
        for name in ("inputs", "outputs", "intermediates"):
            if getattr(holder, name, None) is not None:
                setattr(holder, name, [place[index] for index in _indices(holder, name)])
    for port in ports:
        port.tensorIndex = place[int(port.tensorIndex)]
    dropped = len(graph.tensors) - len(used)
    graph.tensors = [graph.tensors[index] for index in used]
    return dropped


def _indices(holder: Any, name: str) -> list[int]:
    found = getattr(holder, name, None)
    return [] if found is None else [int(index) for index in found]
