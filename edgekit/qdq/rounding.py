"""Rounding the weights of an ONNX graph by data, layer after layer, each on what it sees behind the layers rounded before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit.progress import Progress, silent
from edgekit.qdq import layers, protos, stream
from edgekit.qdq.layers import OnnxLayer
from edgekit.quantize import grid
from edgekit.quantize.gathering import Gathering, Split, columns_a_sample
from edgekit.quantize.grid import Affine
from edgekit.quantize.layer import Rounded, bias_floor, left_alone, round_layer
from edgekit.quantize.ranges import Histogram
from edgekit.quantize.stream import Stream
from edgekit.tensors import Array, Arrays


@dataclasses.dataclass(frozen=True)
class Weights:
    """A float graph whose weights lie on their integer grids, with corrected biases. `scales` are float64 [outputs] by weight name, or
    [outputs, blocks] where equal stretches of an output's weights have one each; `widths` the bits of those that have not 8.
    """

    proto: Any
    scales: Mapping[str, Array]
    bits: int = 8
    notices: tuple[str, ...] = ()
    widths: Mapping[str, int] = dataclasses.field(default_factory=dict)


NARROW_INPUTS = 32
"""Layers with fewer weights an output (depthwise ones) keep 8 bits: four would save little there, and cost most."""

FINE_BITS = 15
"""Bits of weights that are stored in 16: with the last one Hexagon's kernels overflow (single layers of EfficientNet-Lite0 on the simulator: 62 to
69 dB against float with 15 bits, 58 to 64 with 14, 38 to 62 with 16).
"""

BLOCKS = (32, 16)
"""Sizes of blocks with a scale of their own among the 4-bit weights of an output, the first that divides their number."""


def round_weights(
    proto: Any,
    samples: Sequence[Arrays],
    seen: Mapping[str, Histogram],
    folder: Path,
    *,
    method: str = "second-order",
    bits: int = 8,
    blocks: bool = False,
    fine: frozenset[str] = frozenset(),
    grids: Mapping[str, Affine] | None = None,
    progress: Progress = silent,
) -> Weights:
    """Round every linear layer of a canonical graph by `method` (`nearest`, `bias`, `second-order`); deterministic.

    `seen` are the histograms of its activations. With `grids`, those of the activations that will be integers, layers read what lies on
    them, and weights make up for what that rounding lost. With `blocks` narrow weights of dense layers and convolutions of single pixels
    have a scale for each block of inputs. Weights in `fine` have `FINE_BITS`.
    """
    made = protos.copy(proto)
    found, by_data = layers.find(made), method != "nearest" and bool(samples)
    scales: dict[str, Array] = {}
    widths: dict[str, int] = {}
    results: list[Rounded] = []
    given = samples if by_data else ()
    flows = (stream.over(made, given, folder, grids), stream.over(protos.copy(proto), given, folder))
    try:
        for number, layer in enumerate(found):
            progress(number, len(found), "round weights")
            linear = layer.layer(protos.constants_of(made, layer.weight, layer.bias))
            own = FINE_BITS if layer.weight in fine else bits if bits >= 8 or linear.weight.shape[1] >= NARROW_INPUTS else 8
            size = _block(layer, linear.weight.shape[1]) if blocks and own < 8 else linear.weight.shape[1]
            steps = _scales(linear.weight, linear.bias, seen.get(layer.input), own, size)
            if by_data and layer.window is not None:
                read, wanted = _gathered(flows, layer, linear.weight.shape[1], len(samples), method)
                results.append(round_layer(linear, read, wanted, method=method, bits=own, scales=steps))
            else:
                results.append(round_layer(linear, method="nearest", bits=own, scales=steps))
            _store(made, layer, results[-1])
            kept = results[-1].scales[:, ::size]
            scales[layer.weight] = kept if kept.shape[1] > 1 else kept[:, 0]
            widths |= {layer.weight: own} if own != 8 else {}
    finally:
        for flow in flows:
            flow.close()
    return Weights(made, scales, bits, left_alone(results), widths)


def with_fine(plain: Weights, finest: Weights, fine: frozenset[str]) -> Weights:
    """`plain`, with the weights in `fine` as they are in `finest`; both rounded to nearest."""
    made, values = protos.copy(plain.proto), protos.constants_of(finest.proto, *fine)
    for name, value in values.items():
        protos.set_constant(made, name, value)
    scales = {name: (finest if name in fine else plain).scales[name] for name in plain.scales}
    return dataclasses.replace(plain, proto=made, scales=scales, widths={**plain.widths, **dict.fromkeys(fine, FINE_BITS)})


def _block(layer: OnnxLayer, k: int) -> int:
    pointwise = layer.window == () or (layer.window is not None and layer.groups == 1 and layer.window[0] == (1, 1))
    return next((size for size in BLOCKS if pointwise and k % size == 0), k)


def _scales(weight: Array, bias: Array, seen: Histogram | None, bits: int, block: int) -> Array:
    reach = max(-seen.low, seen.high) if seen and len(bias) == len(weight) else 0.0
    floor = bias_floor(bias, reach, 65535)  # with 16-bit activations too
    return grid.weight_scales(weight, bits=bits, block=block, floor=floor)


def _gathered(flows: Sequence[Stream[str]], layer: OnnxLayer, k: int, samples: int, method: str) -> tuple[Split, Split]:
    """Moments of what a layer reads behind the layers that are rounded already, and of what it reads in the float model."""
    second, each = method == "second-order", columns_a_sample(k, samples)
    seen, wanted = Gathering(samples, second=second), Gathering(samples, second=False)
    for flow in flows:
        flow.advance(layer.node)
    for number, pair in enumerate(zip(*(flow.values(layer.input) for flow in flows), strict=True)):
        columns = [layers.columns(layer, values, each, seed=number) for values in pair]
        seen.add(number, *columns)
        wanted.add(number, columns[1])
    return seen.halves(), wanted.halves()


def _store(proto: Any, layer: OnnxLayer, rounded: Rounded) -> None:
    import numpy as np

    shapes = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    protos.set_constant(proto, layer.weight, layer.from_matrix(rounded.weight.astype(np.float32), shapes[layer.weight]))
    if layer.bias and layer.kind != "ConvTranspose":
        protos.set_constant(proto, layer.bias, rounded.bias.astype(np.float32).reshape(shapes[layer.bias]))
