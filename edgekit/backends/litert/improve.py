"""Rounding the weights of a `.tflite` by data, layer after layer, each on what it sees behind the layers rounded before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from edgekit.backends.litert import layers, running, stream
from edgekit.backends.litert.layers import LiteLayer
from edgekit.backends.litert.source import Source
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize import grid
from edgekit.quantize.gathering import Gathering, Split, columns_a_sample
from edgekit.quantize.grid import Affine
from edgekit.quantize.layer import Rounded, bias_floor, left_alone, round_layer
from edgekit.tensors import Array


@dataclasses.dataclass(frozen=True)
class Improved:
    """A float `.tflite` whose weights lie on their int8 grids, with corrected biases.

    `channels` gives 127 scales of each weight tensor by name, shaped like the weight: what the grid spans, where its largest weight
    may have moved. `notices` say where a method was not used.
    """

    content: bytes
    channels: Mapping[str, Array]
    notices: tuple[str, ...] = ()


def improve(source: Source, content: bytes, method: str, skip: frozenset[str] = frozenset(), grids: Mapping[str, Affine] | None = None) -> Improved:
    """Round the linear layers of the float model `content` by `method` (`nearest`, `bias`, `second-order`), but for those named in
    `skip`, which stay float; deterministic. `grids` are those of the activations that will be integers, by tensor name.

    The memory beyond the model itself is that of two streams (`shelf.MEMORY_BYTES` each), one layer's moments, and one sample's layer inputs.
    """
    model = flatbuffer.load(content)
    found = [layer for layer in layers.find(model) if layer.name not in skip]
    channels: dict[str, Array] = {}
    results: list[Rounded] = []
    flow = _Flow(source, model, content, grids or {}) if method != "nearest" and source.samples else None
    try:
        for number, layer in enumerate(found):
            source.context.progress(number, len(found), "round weights")
            results.append(_round(source, flow, model, layer, method))
            channels |= _store(model, layer, results[-1])
    finally:
        if flow:
            flow.close()
    flatbuffer.merge_buffers(model, share=False)
    return Improved(flatbuffer.dump(model), channels, left_alone(results))


class _Flow:
    """All samples in the model whose layers are rounded one by one, and beside it in the float model."""

    def __init__(self, source: Source, model: Any, content: bytes, grids: Mapping[str, Affine]) -> None:
        self._source, self._count, self._plain = source, len(source.samples), flatbuffer.load(content)
        self._rounded, self._float = stream.over(source, model, grids), stream.over(source, self._plain)

    def gather(self, layer: LiteLayer, width: int, *, second: bool) -> tuple[Split, Split]:
        """Moments of what a layer reads, and of what it reads in the float model."""
        each = columns_a_sample(width, self._count * (1 + len(layer.ties)))
        seen, wanted = Gathering(self._count, second=second), Gathering(self._count, second=False)
        for number, values, plain in self._tied(layer) if layer.ties else self._inputs(layer):
            columns = layers.columns(layer, values, width, each, seed=number)
            beside = columns if plain is values else layers.columns(layer, plain, width, each, seed=number)
            seen.add(number, columns, None if plain is values else beside)
            wanted.add(number, beside)
        return seen.halves(), wanted.halves()

    def _inputs(self, layer: LiteLayer) -> Iterator[tuple[int, Array, Array]]:
        self._rounded.advance(layer.op)
        self._float.advance(layer.op)
        for number, (values, plain) in enumerate(zip(self._rounded.values(layer.input), self._float.values(layer.input), strict=True)):
            yield number, values, plain

    def _tied(self, layer: LiteLayer) -> Iterator[tuple[int, Array, Array]]:
        """Tied weights are rounded before all but the first of their places have been reached: on what the places read in the float model."""
        operators = self._plain.subgraphs[0].operators
        read = [int(operators[place].inputs[0]) for place in (layer.op, *layer.ties)]
        taps = running.Taps(self._plain, self._source.model.signature, read)
        for number, sample in enumerate(self._source.samples):
            for values in taps.run(sample).values():
                yield number, values, values

    def close(self) -> None:
        self._rounded.close()
        self._float.close()


def _round(source: Source, flow: _Flow | None, model: Any, layer: LiteLayer, method: str) -> Rounded:
    linear = layer.layer(model)
    scales = grid.weight_scales(linear.weight, floor=bias_floor(linear.bias, _reach(source, model, layer), 32767))
    if flow is None:
        return round_layer(linear, method="nearest", scales=scales)
    seen, wanted = flow.gather(layer, linear.weight.shape[1], second=method == "second-order")
    return round_layer(linear, seen, wanted, method=method, scales=scales)


def _reach(source: Source, model: Any, layer: LiteLayer) -> float:
    import numpy as np

    extremes = source.extremes.get(flatbuffer.text(model.subgraphs[0].tensors[layer.input].name)) if source.samples else None
    return 0.0 if extremes is None else float(np.abs(extremes).max())


def _store(model: Any, layer: LiteLayer, rounded: Rounded) -> dict[str, Array]:
    import numpy as np

    tensors = model.subgraphs[0].tensors
    weight = tensors[layer.weight]
    shape = tuple(int(size) for size in weight.shape)
    weight.buffer = flatbuffer.add_constant(model, layers.from_matrix(layer.kind, rounded.weight.astype(np.float32), shape))
    if layer.bias >= 0:
        tensors[layer.bias].buffer = flatbuffer.add_constant(model, rounded.bias.astype(np.float32))
    magnitude = layers.channel_shape(layer.kind, rounded.scales[:, 0] * 127, len(shape)).astype(np.float32)
    return {flatbuffer.text(weight.name): magnitude}
