"""Rounding the weights of an ONNX graph by data, layer after layer, each on what it sees behind the layers rounded before it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit.qdq import layers, protos, stream
from edgekit.qdq.layers import OnnxLayer
from edgekit.quantize import grid
from edgekit.quantize.layer import Rounded, round_layer
from edgekit.quantize.moments import Moments, merge, moments
from edgekit.quantize.ranges import Histogram
from edgekit.tensors import Array, Arrays

COLUMNS = (4000, 8000)
"""Fewest and most input columns gathered a layer; between them, eight for each weight of an output."""

HELD_OUT = 4
"""Every fourth sample judges, the others teach."""

BLOCK_BYTES = 32_000_000
"""Columns held at once."""

BIAS_STEPS = 2.0**30
"""A bias is stored in int32 steps of input scale times weight scale; scales are kept large enough for half of that range."""

Split = tuple[Moments, Moments]


@dataclasses.dataclass(frozen=True)
class Weights:
    """A float graph whose weights lie on their integer grids, with corrected biases. `scales` are float64 [outputs] by weight name."""

    proto: Any
    scales: Mapping[str, Array]
    bits: int = 8
    notices: tuple[str, ...] = ()


def round_weights(
    proto: Any,
    samples: Sequence[Arrays],
    seen: Mapping[str, Histogram],
    folder: Path,
    *,
    method: str = "second-order",
    bits: int = 8,
    per_tensor: Sequence[str] = (),
    power_of_two: bool = False,
    progress: stream.Progress = lambda done, of, what: None,
) -> Weights:
    """Round every linear layer of a canonical graph by `method` (`nearest`, `bias`, `second-order`); deterministic.

    `seen` are the histograms of its activations; `per_tensor` names the kinds of layers whose weights share one scale.
    """
    made = protos.copy(proto)
    found, by_data = layers.find(made), method != "nearest" and bool(samples)
    wanted = _float_means(proto, found, samples, progress) if by_data else {}
    scales: dict[str, Array] = {}
    results: list[Rounded] = []
    flow = stream.Stream(made, samples if by_data else (), folder)
    try:
        for number, layer in enumerate(found):
            progress(number, len(found), "round weights")
            linear = layer.layer(protos.constants_of(made, layer.weight, layer.bias))
            steps = _scales(layer, linear.weight, linear.bias, seen.get(layer.input), bits, per_tensor, power_of_two)
            halves = _halves(flow, layer, linear.weight.shape[1], len(samples), method) if layer.node in wanted else None
            chosen = method if halves else "nearest"
            results.append(round_layer(linear, halves, wanted.get(layer.node), method=chosen, bits=bits, scales=steps))
            _store(made, layer, results[-1])
            scales[layer.weight] = results[-1].scales[:, 0]
    finally:
        flow.close()
    return Weights(made, scales, bits, _summary(results))


def _scales(
    layer: OnnxLayer, weight: Array, bias: Array, seen: Histogram | None, bits: int, per_tensor: Sequence[str], power_of_two: bool
) -> Array:
    import numpy as np

    reach = max(-seen.low, seen.high) if seen else 0.0
    floor: Any = grid.TINY
    if reach and len(bias) == len(weight):  # with 16-bit activations too
        floor = np.abs(bias.astype(np.float64))[:, None] / (max(reach / 65535, 1e-9) * BIAS_STEPS)
    if layer.kind in per_tensor:
        floor = float(np.max(floor))
        return grid.weight_scales(weight, bits=bits, granularity="tensor", power_of_two=power_of_two, floor=floor)
    return grid.weight_scales(weight, bits=bits, power_of_two=power_of_two, floor=floor)


def _float_means(proto: Any, found: list[OnnxLayer], samples: Sequence[Arrays], progress: stream.Progress) -> dict[int, Split]:
    """The float model's input means of every layer, at the same positions that its rounded self is looked at later."""
    here = [layer for layer in found if layer.window is not None]
    if not here:
        return {}
    run = stream.taps(proto, list(dict.fromkeys(layer.input for layer in here)))
    values = protos.constants(proto)
    gathered = {layer.node: _Gathering(layer, _count(layer.to_matrix(values[layer.weight]).shape[1], len(samples)), second=False) for layer in here}
    for number, sample in enumerate(samples):
        progress(number, len(samples), "measure layer inputs")
        tapped = run(sample)
        for layer in here:
            gathered[layer.node].add(number, tapped[layer.input])
    return {node: gathering.halves() for node, gathering in gathered.items()}


def _halves(flow: stream.Stream, layer: OnnxLayer, k: int, samples: int, method: str) -> Split:
    flow.advance(layer.node)
    gathering = _Gathering(layer, _count(k, samples), second=method == "second-order")
    for number, values in enumerate(flow.values(layer.input)):
        gathering.add(number, values)
    return gathering.halves()


class _Gathering:
    """Moments of a layer's inputs in a stream; columns are held until a block of them is worth one matrix product."""

    def __init__(self, layer: OnnxLayer, count: int, *, second: bool) -> None:
        self._layer, self._count, self._second = layer, count, second
        self._held: dict[bool, list[Array]] = {False: [], True: []}
        self._moments: dict[bool, Moments] = {}

    def add(self, number: int, values: Array) -> None:
        judge = number % HELD_OUT == HELD_OUT - 1
        self._held[judge].append(layers.columns(self._layer, values, self._count, seed=number))
        if not self._second or sum(columns.nbytes for columns in self._held[judge]) > BLOCK_BYTES:
            self._settle(judge)

    def halves(self) -> Split:
        for judge in (False, True):
            self._settle(judge)
        return self._moments[False], self._moments.get(True, self._moments[False])

    def _settle(self, judge: bool) -> None:
        import numpy as np

        if self._held[judge]:
            found = moments(np.concatenate(self._held[judge], axis=1), second=self._second)
            self._moments[judge] = merge(self._moments.get(judge), found)
            self._held[judge] = []


def _count(k: int, samples: int) -> int:
    return math.ceil(min(max(8 * k, COLUMNS[0]), COLUMNS[1]) / samples)


def _store(proto: Any, layer: OnnxLayer, rounded: Rounded) -> None:
    import numpy as np

    shapes = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    protos.set_constant(proto, layer.weight, layer.from_matrix(rounded.weight.astype(np.float32), shapes[layer.weight]))
    if layer.bias and layer.kind != "ConvTranspose":
        protos.set_constant(proto, layer.bias, rounded.bias.astype(np.float32))


def _summary(results: list[Rounded]) -> tuple[str, ...]:
    weights, biases = sum(rounded.weight_left for rounded in results), sum(rounded.bias_left for rounded in results)
    found = []
    if weights:
        found.append(f"{weights} of {len(results)} layers keep weights rounded to nearest: rounding by data was worse on held-out samples")
    if biases:
        found.append(f"{biases} of {len(results)} layers keep their bias: its correction was worse on held-out samples")
    return tuple(found)
