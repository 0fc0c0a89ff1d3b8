"""What 16 bits add to a context binary, layer by layer, as the HTP's compiler says of each layer alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgekit.qdq import layers, protos, rounding, sensitivity, stream, write
from edgekit.quantize.ranges import Histogram
from edgekit.tensors import Arrays

Prices = tuple[dict[str, int], dict[str, int]]
"""Bytes by weight: those of activations of 16 bits, and those that 16 bits of the weight add to them."""


def prices(proto: Any, sample: Arrays, seen: Mapping[str, Histogram], folder: Path, size_of: Callable[[Any], float]) -> Prices:
    """Of every convolution. Those with groups are built alone, in each form: some the compiler spreads out to dense ones, 32 times the weights,
    and which it does depends on sizes and steps. Layers of one form are built once. A form that is refused (`size_of` infinite) has no price.
    """
    found = [layer for layer in layers.find(proto) if layer.window]
    values = stream.taps(proto, sorted({layer.input for layer in found}))(sample)
    sizes = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    known: dict[tuple[Any, ...], tuple[float, float]] = {}
    activations, weights = dict[str, int](), dict[str, int]()
    for layer in found:
        name, shape = layer.weight, sizes[layer.weight]
        key = (str(protos.attributes(proto.graph.node[layer.node])), shape, values[layer.input].shape)
        if key not in known:
            plain = float(sensitivity.layer_bytes(math.prod(shape))), float(math.prod(shape))
            known[key] = plain if layer.groups == 1 else _alone(proto, layer, values, seen, folder, size_of)
        for into, price in zip((activations, weights), known[key], strict=True):
            into |= {name: int(price)} if math.isfinite(price) else {}
    return activations, weights


def _alone(
    proto: Any, layer: layers.OnnxLayer, values: Arrays, seen: Mapping[str, Histogram], folder: Path, size_of: Callable[[Any], float]
) -> tuple[float, float]:
    import onnx

    part = protos.part(proto, layer.node, layer.node + 1, {layer.input: values[layer.input]}, [layer.output])
    part.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info(layer.input, onnx.TensorProto.FLOAT, values[layer.input].shape))
    part = onnx.shape_inference.infer_shapes(part)

    def weigh(bits: int, fine: frozenset[str] = frozenset()) -> float:
        weights = rounding.round_weights(part, (), seen, folder, method="nearest", fine=fine)
        return size_of(write.write(weights, seen, write.Policy(bits, fine=fine)))

    narrow, wide, fine = weigh(8), weigh(16), weigh(16, frozenset((layer.weight,)))
    return max(wide - narrow, 0.0) if math.isfinite(narrow) else math.inf, max(fine - wide, 0.0) if math.isfinite(wide) else math.inf
