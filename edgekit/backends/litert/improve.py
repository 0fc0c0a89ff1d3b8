"""Rounding the weights of a `.tflite` by data, layer after layer, each on what it sees behind the layers rounded before it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from edgekit.backends.litert import flatbuffer, layers, running
from edgekit.backends.litert.layers import LiteLayer
from edgekit.backends.litert.source import Source
from edgekit.backends.litert.stream import Stream
from edgekit.quantize import grid
from edgekit.quantize.layer import Rounded, round_layer
from edgekit.quantize.moments import Moments, merge, moments
from edgekit.tensors import Array

COLUMNS = (1500, 6000)
"""Fewest and most input columns gathered a layer; between them, eight for each weight of an output."""

HELD_OUT = 4
"""Every fourth sample judges, the others teach."""

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


def improve(source: Source, content: bytes, method: str) -> Improved:
    """Round every linear layer of the float model `content` by `method` (`nearest`, `bias`, `second-order`); deterministic.

    The memory beyond the model itself is that of `stream.MEMORY_BYTES`, one layer's moments, and one sample's layer inputs.
    """
    model = flatbuffer.load(content)
    found = layers.find(model)
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
    return Improved(flatbuffer.dump(model), channels, _summary(results))


def _round(source: Source, stream: Stream, model: Any, layer: LiteLayer, wanted: Split | None, method: str) -> Rounded:
    linear = layer.layer(model)
    scales = grid.weight_scales(linear.weight, floor=_floor(source, model, layer, linear.bias))
    if wanted is None:
        return round_layer(linear, method="nearest", scales=scales)
    stream.advance(layer.op)
    seen = _split(layer, stream.values(layer.input), _count(model, layer, len(source.samples)), method == "second-order")
    return round_layer(linear, seen, wanted, method=method, scales=scales)


def _floor(source: Source, model: Any, layer: LiteLayer, bias: Array) -> Array:
    """Smallest weight scales, [outputs, 1], at which the bias still fits its integer type, with 16-bit activations too."""
    import numpy as np

    extremes = source.extremes.get(flatbuffer.text(model.subgraphs[0].tensors[layer.input].name)) if source.samples else None
    largest = 0.0 if extremes is None else float(np.abs(extremes).max())
    return np.abs(bias.astype(np.float64))[:, None] / (max(largest / 32767, 1e-9) * BIAS_STEPS) if largest else np.full((len(bias), 1), grid.TINY)


def _float_means(source: Source, model: Any, found: list[LiteLayer]) -> dict[int, Split]:
    """The float model's input means of every layer, at the same positions that its rounded self is looked at later."""
    taps = running.Taps(model, source.model.signature, [layer.input for layer in found])
    gathered: dict[tuple[int, bool], Moments] = {}
    for number, sample in enumerate(source.samples):
        source.context.progress(number, len(source.samples), "measure layer inputs")
        values = taps.run(sample)
        for layer in found:
            _gather(gathered, layer, values[layer.input], number, _count(model, layer, len(source.samples)), second=False)
    return {layer.op: _halves(gathered, layer) for layer in found} if source.samples else {}


def _split(layer: LiteLayer, samples: Iterable[Array], count: int, second: bool) -> Split:
    gathered: dict[tuple[int, bool], Moments] = {}
    for number, values in enumerate(samples):
        _gather(gathered, layer, values, number, count, second)
    return _halves(gathered, layer)


def _gather(gathered: dict[tuple[int, bool], Moments], layer: LiteLayer, values: Array, number: int, count: int, second: bool) -> None:
    key = layer.op, number % HELD_OUT == HELD_OUT - 1
    gathered[key] = merge(gathered.get(key), moments(layers.columns(layer, values, count, seed=number), second=second))


def _halves(gathered: dict[tuple[int, bool], Moments], layer: LiteLayer) -> Split:
    return gathered[layer.op, False], gathered.get((layer.op, True), gathered[layer.op, False])


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
    kept = sum(rounded.outputs_left for rounded in results)
    of = sum(len(rounded.bias) for rounded in results)
    biases = sum(rounded.bias_left for rounded in results)
    found = []
    if kept:
        found.append(f"{kept} of {of} output channels keep weights rounded to nearest: rounding by data was worse there on held-out samples")
    if biases:
        found.append(f"{biases} of {len(results)} layers keep their bias: its correction was worse on held-out samples")
    return tuple(found)
