"""Rounding the weights of a `.tflite` by data, layer after layer, each on what it sees behind the layers rounded before it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from edgekit.backends.litert import layers, running
from edgekit.backends.litert.layers import LiteLayer
from edgekit.backends.litert.source import HELD_OUT, Source
from edgekit.backends.litert.stream import Stream
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize import grid
from edgekit.quantize.layer import Rounded, round_layer
from edgekit.quantize.moments import Moments, merge, moments
from edgekit.tensors import Array

COLUMNS = (3000, 6000)
"""Fewest and most input columns gathered a layer; between them, eight for each weight of an output."""

BLOCK_BYTES = 32_000_000
"""Columns held at once."""

BIAS_STEPS = 2.0**30
"""A bias is stored in int32 steps of input scale times weight scale; scales are kept large enough for half of that range."""

Split = tuple[Moments, Moments]
"""Of the samples that teach, and of those held out (the same where there are too few)."""


@dataclasses.dataclass(frozen=True)
class Improved:
    """A float `.tflite` whose weights lie on their int8 grids, with corrected biases.

    `channels` gives 127 scales of each weight tensor by name, shaped like the weight: what the grid spans, where its largest weight
    may have moved. `notices` say where a method was not used.
    """

    content: bytes
    channels: Mapping[str, Array]
    notices: tuple[str, ...] = ()


def improve(source: Source, content: bytes, method: str, skip: frozenset[str] = frozenset()) -> Improved:
    """Round the linear layers of the float model `content` by `method` (`nearest`, `bias`, `second-order`), but for those named in
    `skip`, which stay float; deterministic.

    The memory beyond the model itself is that of `stream.MEMORY_BYTES`, one layer's moments, and one sample's layer inputs.
    """
    model = flatbuffer.load(content)
    found = [layer for layer in layers.find(model) if layer.name not in skip]
    wanted = _float_means(source, model, found) if method != "nearest" else {}
    channels: dict[str, Array] = {}
    results: list[Rounded] = []
    stream = Stream(source, model)
    try:
        for number, layer in enumerate(found):
            source.context.progress(number, len(found), "round weights")
            results.append(_round(source, stream, model, layer, wanted.get(layer.op), method))
            channels |= _store(model, layer, results[-1])
    finally:
        stream.close()
    flatbuffer.merge_buffers(model, share=False)
    return Improved(flatbuffer.dump(model), channels, _summary(results))


def _round(source: Source, stream: Stream, model: Any, layer: LiteLayer, wanted: Split | None, method: str) -> Rounded:
    linear = layer.layer(model)
    scales = grid.weight_scales(linear.weight, floor=_floor(source, model, layer, linear.bias))
    if wanted is None:
        return round_layer(linear, method="nearest", scales=scales)
    stream.advance(layer.op)
    seen = _gathered(source, stream, model, layer, second=method == "second-order")
    return round_layer(linear, seen, wanted, method=method, scales=scales)


def _gathered(source: Source, stream: Stream, model: Any, layer: LiteLayer, *, second: bool) -> Split:
    gathering = _Gathering(layer, _count(model, layer, len(source.samples)), second=second)
    for number, values in enumerate(stream.values(layer.input)):
        gathering.add(number, values)
    return gathering.halves()


def _floor(source: Source, model: Any, layer: LiteLayer, bias: Array) -> Array:
    """Smallest weight scales, [outputs, 1], at which the bias still fits its integer type, with 16-bit activations too."""
    import numpy as np

    extremes = source.extremes.get(flatbuffer.text(model.subgraphs[0].tensors[layer.input].name)) if source.samples else None
    largest = 0.0 if extremes is None else float(np.abs(extremes).max())
    return np.abs(bias.astype(np.float64))[:, None] / (max(largest / 32767, 1e-9) * BIAS_STEPS) if largest else np.full((len(bias), 1), grid.TINY)


def _float_means(source: Source, model: Any, found: list[LiteLayer]) -> dict[int, Split]:
    """The float model's input means of every layer, at the same positions that its rounded self is looked at later."""
    taps = running.Taps(model, source.model.signature, [layer.input for layer in found])
    gathered = {layer.op: _Gathering(layer, _count(model, layer, len(source.samples)), second=False) for layer in found}
    for number, sample in enumerate(source.samples):
        source.context.progress(number, len(source.samples), "measure layer inputs")
        values = taps.run(sample)
        for layer in found:
            gathered[layer.op].add(number, values[layer.input])
    return {op: gathering.halves() for op, gathering in gathered.items()} if source.samples else {}


class _Gathering:
    """Moments of a layer's inputs in a stream; columns are held until a block of them is worth one matrix product."""

    def __init__(self, layer: LiteLayer, count: int, *, second: bool) -> None:
        self._layer, self._count, self._second = layer, count, second
        self._held: dict[bool, list[Array]] = {False: [], True: []}
        self._moments: dict[bool, Moments] = {}

    def add(self, number: int, values: Array) -> None:
        """Look at one sample; the same `number` looks at the same positions."""
        judge = number % HELD_OUT == HELD_OUT - 1
        self._held[judge].append(layers.columns(self._layer, values, self._count, seed=number))
        if not self._second or sum(columns.nbytes for columns in self._held[judge]) > BLOCK_BYTES:
            self._settle(judge)

    def halves(self) -> Split:
        """Moments of the samples that teach and of those that judge."""
        for judge in (False, True):
            self._settle(judge)
        return self._moments[False], self._moments.get(True, self._moments[False])

    def _settle(self, judge: bool) -> None:
        import numpy as np

        if self._held[judge]:
            found = moments(np.concatenate(self._held[judge], axis=1), second=self._second)
            self._moments[judge] = merge(self._moments.get(judge), found)
            self._held[judge] = []


def _count(model: Any, layer: LiteLayer, samples: int) -> int:
    shape = [int(size) for size in model.subgraphs[0].tensors[layer.weight].shape]
    k = math.prod(shape[1:3]) if layer.kind == "DEPTHWISE_CONV_2D" else math.prod(shape[1:])
    return math.ceil(min(max(8 * k, COLUMNS[0]), COLUMNS[1]) / samples)


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


def _summary(results: list[Rounded]) -> tuple[str, ...]:
    weights, biases = sum(rounded.weight_left for rounded in results), sum(rounded.bias_left for rounded in results)
    found = []
    if weights:
        found.append(f"{weights} of {len(results)} layers keep weights rounded to nearest: rounding by data was worse on held-out samples")
    if biases:
        found.append(f"{biases} of {len(results)} layers keep their bias: its correction was worse on held-out samples")
    return tuple(found)
