"""The linear layers of an ONNX graph as the quantization core sees them, and samples of what they read."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgekit.qdq import protos
from edgekit.quantize import windows
from edgekit.quantize.moments import Layer, from_matrix, to_matrix
from edgekit.tensors import Array

KINDS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclasses.dataclass(frozen=True)
class OnnxLayer:
    """A linear node with constant float weights that it alone reads. `axis` is the weight's output axis, `bias` is empty where there is none.

    `window` is (kernel, strides, dilations, pads before, pads after) of a convolution in two dimensions, empty for what has no window, or
    None for a layer whose inputs cannot be gathered (transposed or in three dimensions): it is rounded to nearest.
    """

    node: int
    kind: str
    name: str
    input: str
    weight: str
    bias: str
    output: str
    groups: int
    axis: int
    window: tuple[tuple[int, ...], ...] | None

    def layer(self, values: dict[str, Array]) -> Layer:
        """Weights [outputs, k] and bias (zero where there is none) as the core wants them."""
        import numpy as np

        weight = self.to_matrix(values[self.weight])
        bias = values[self.bias].reshape(-1) if self.bias else np.zeros(weight.shape[0], np.float32)
        if self.kind == "ConvTranspose":  # its groups share rows of weights, and so the largest bias of each
            return Layer(weight, np.abs(bias).reshape(self.groups, -1).max(0), 1)
        return Layer(weight, np.broadcast_to(bias, weight.shape[:1]).astype(np.float32), self.groups)

    def to_matrix(self, weight: Array) -> Array:
        """A stored weight as [channels of the output axis, the rest]."""
        return to_matrix(weight, self.axis)

    def from_matrix(self, matrix: Array, shape: tuple[int, ...]) -> Array:
        """[outputs, k] back in the stored layout."""
        return from_matrix(matrix, shape, self.axis)


def find(proto: Any) -> list[OnnxLayer]:
    """The linear layers of a canonical graph, in execution order."""
    values, read = protos.constants(proto), protos.consumers(proto.graph.node)
    shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in (*proto.graph.value_info, *proto.graph.input)}
    found = []
    for index, node in enumerate(proto.graph.node):
        if node.op_type not in KINDS or len(node.input) < 2 or node.domain not in ("", "ai.onnx"):
            continue
        weight = values.get(node.input[1])
        if weight is None or weight.dtype != "float32" or len(read[node.input[1]]) != 1 or node.input[0] in values:
            continue
        layer = _describe(index, node, weight, values, shapes.get(node.input[0], ()))
        if layer:
            found.append(layer)
    return found


def columns(layer: OnnxLayer, values: Array, count: int, seed: int) -> Array:
    """What the layer's kernel sees at `count` output positions: float32 [groups, samples, k]. The same seed picks the same positions."""
    if not layer.window:
        return windows.rows(values, values.shape[-1], count, seed)
    planes = (values if values.ndim == 4 else values[:, :, None, :]).transpose(0, 2, 3, 1)
    kernel, stride, dilation, before, after = layer.window
    out = [(planes.shape[1 + a] + before[a] + after[a] - (kernel[a] - 1) * dilation[a] - 1) // stride[a] + 1 for a in (0, 1)]
    window = windows.Window(*((row[0], row[1]) for row in (kernel, stride, dilation, before, out)))
    return windows.by_group(windows.patches(window, planes, count, seed), layer.groups, channels_first=True)


def _describe(index: int, node: Any, weight: Array, values: dict[str, Array], shape: tuple[int, ...]) -> OnnxLayer | None:
    found = protos.attributes(node)
    bias = node.input[2] if len(node.input) > 2 and node.input[2] in values else ""
    if len(node.input) > 2 and node.input[2] and not bias:
        return None
    window: tuple[tuple[int, ...], ...] | None = ()
    groups, axis = int(found.get("group", 1)), 0
    if node.op_type == "Conv":
        window = _window(found, weight.shape, shape)
    elif node.op_type == "ConvTranspose":
        window, axis = None, 1
    elif node.op_type == "Gemm":
        if found.get("transA", 0) or found.get("alpha", 1.0) != 1.0 or found.get("beta", 1.0) != 1.0:
            return None
        axis = 0 if found.get("transB", 0) else 1
    else:
        if weight.ndim != 2:
            return None
        axis = 1
    return OnnxLayer(index, node.op_type, node.name, node.input[0], node.input[1], bias, node.output[0], groups, axis, window)


def _window(found: dict[str, Any], kernel_shape: tuple[int, ...], shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """Kernel, strides, dilations and pads of a convolution, widened to two dimensions; None beyond two."""
    rank = len(kernel_shape) - 2
    if rank not in (1, 2):
        return None
    kernel = tuple(kernel_shape[2:])
    strides, dilations = tuple(found.get("strides", (1,) * rank)), tuple(found.get("dilations", (1,) * rank))
    mode = found.get("auto_pad", "NOTSET")
    pads = tuple(found.get("pads", (0,) * (2 * rank)))
    before, after = pads[:rank], pads[rank:]
    if mode.startswith("SAME"):
        if len(shape) != rank + 2 or not all(shape):
            return None
        total = [max((-(-shape[i + 2] // strides[i]) - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - shape[i + 2], 0) for i in range(rank)]
        small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        before, after = (small, large) if mode == "SAME_UPPER" else (large, small)
    rows = (kernel, strides, dilations, before, after)
    return rows if rank == 2 else tuple((fill, *row) for fill, row in zip((1, 1, 1, 0, 0), rows, strict=True))
