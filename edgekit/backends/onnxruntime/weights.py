"""Smaller weights beside float activations: halves, and 8-bit integers per output channel. The runtime unpacks them when it computes."""

from __future__ import annotations

from typing import Any

from edgekit.qdq import layers, protos
from edgekit.qdq.rounding import Weights
from edgekit.tensors import Array

LEAST_ELEMENTS = 64
"""Smaller constants stay as they are: a Cast costs more bytes than it saves."""

LARGEST_HALF = 65504.0


def half(proto: Any) -> tuple[Any, tuple[str, ...]]:
    """A copy whose large float32 constants are stored as float16 behind a Cast, and a notice for those that half precision cannot hold.

    ONNX Runtime folds the casts when it loads the file: it computes in float32, with the same values on every device.
    """
    import numpy as np

    made = protos.copy(proto)
    kept, casts = [], []
    for name, value in protos.constants(made).items():
        if value.dtype != "float32" or value.size < LEAST_ELEMENTS:
            continue
        if float(np.abs(value).max()) > LARGEST_HALF:
            kept.append(name)
            continue
        casts.append(_pack(made, name, value.astype(np.float16), "Cast"))
    _prepend(made, casts)
    return made, tuple(f"{name} stays in 32 bits: it leaves the range of half precision" for name in kept)


def stored(weights: Weights) -> Any:
    """A copy of a rounded graph whose layers' weights are int8 behind a DequantizeLinear, one scale an output channel."""
    import numpy as np

    made = protos.copy(weights.proto)
    values, nodes = protos.constants(made), []
    for layer in layers.find(weights.proto):
        scales = weights.scales[layer.weight]
        matrix = layer.to_matrix(values[layer.weight])
        integers = np.rint(matrix / scales[:, None]).astype(np.int8)
        protos.set_constant(made, f"{layer.weight}/scale", scales.astype(np.float32))
        protos.set_constant(made, f"{layer.weight}/zero", np.zeros(scales.shape, np.int8))
        nodes.append(_pack(made, layer.weight, layer.from_matrix(integers, values[layer.weight].shape), "DequantizeLinear", layer.axis))
    _prepend(made, nodes)
    return made


def _pack(proto: Any, name: str, packed: Array, kind: str, axis: int = 0) -> Any:
    """Store `packed` instead of the constant `name`, and the node that gives the constant back."""
    import onnx

    for index, tensor in enumerate(proto.graph.initializer):
        if tensor.name == name:
            del proto.graph.initializer[index]
            break
    protos.set_constant(proto, f"{name}/stored", packed)
    if kind == "Cast":
        return onnx.helper.make_node("Cast", [f"{name}/stored"], [name], name=f"{name}/cast", to=onnx.TensorProto.FLOAT)
    return onnx.helper.make_node(kind, [f"{name}/stored", f"{name}/scale", f"{name}/zero"], [name], name=f"{name}/dequantize", axis=axis)


def _prepend(proto: Any, nodes: list[Any]) -> None:
    kept = [type(node).FromString(node.SerializeToString()) for node in proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes, *kept])
