"""The linear layers of a `.tflite` as the quantization core sees them, and samples of what they read."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize.moments import Layer
from edgekit.tensors import Array

CHANNEL_AXIS = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0}
"""Which axis of the weight has a scale of its own each (the format's quantization specification)."""


@dataclasses.dataclass(frozen=True)
class LiteLayer:
    """A linear operator of the main graph: its place, the tensors it reads, and its geometry (`window` is kernel, stride, dilation, same)."""

    op: int
    kind: str
    name: str
    input: int
    weight: int
    bias: int
    output: int
    groups: int
    window: tuple[int, ...] = ()

    def layer(self, model: Any) -> Layer:
        """Weights and bias (zero where there is none) as the core wants them."""
        import numpy as np

        tensors = model.subgraphs[0].tensors
        weight = to_matrix(self.kind, flatbuffer.data(model, tensors[self.weight]))
        bias = None if self.bias < 0 else flatbuffer.constant(model, tensors[self.bias])
        return Layer(weight, np.zeros(weight.shape[0], np.float32) if bias is None else bias.reshape(-1), self.groups)


def find(model: Any) -> list[LiteLayer]:
    """The float convolutions and dense layers of the main graph with constant weights that no other operator shares, in execution order."""
    graph = model.subgraphs[0]
    uses: dict[int, int] = {}
    for op in (op for g in model.subgraphs for op in g.operators):
        for index in {int(i) for i in op.inputs if i >= 0}:
            uses[index] = uses.get(index, 0) + 1
    buffers = [int(tensor.buffer) for g in model.subgraphs for tensor in g.tensors]
    found = []
    for position, op in enumerate(graph.operators):
        kind = flatbuffer.op_name(model, op)
        if kind in CHANNEL_AXIS and _plain(model, op):
            weight = int(op.inputs[1])
            if uses[weight] == 1 and buffers.count(int(graph.tensors[weight].buffer)) == 1:
                found.append(_describe(model, position, kind))
    return found


def separate_biases(model: Any) -> bool:
    """Give each layer a bias tensor and buffer of its own, where converters let equal ones share; whether anything changed."""
    graph, owned, changed = model.subgraphs[0], set[int](), False
    buffers = [int(tensor.buffer) for g in model.subgraphs for tensor in g.tensors]
    for op in graph.operators:
        if flatbuffer.op_name(model, op) not in CHANNEL_AXIS or len(op.inputs) < 3 or op.inputs[2] < 0:
            continue
        bias = int(op.inputs[2])
        values = flatbuffer.constant(model, graph.tensors[bias])
        if values is None or (bias not in owned and buffers.count(int(graph.tensors[bias].buffer)) == 1):
            owned.add(bias)
            continue
        own = copy.copy(graph.tensors[bias])
        own.buffer = flatbuffer.add_constant(model, values)
        graph.tensors.append(own)
        op.inputs[2], changed = len(graph.tensors) - 1, True
    return changed


def smaller_than(model: Any, elements: int) -> frozenset[str]:
    """Names of the layers whose weight has fewer than `elements` elements."""
    tensors = model.subgraphs[0].tensors
    return frozenset(layer.name for layer in find(model) if flatbuffer.data(model, tensors[layer.weight]).size < elements)


def restored(content: bytes, original: bytes, scopes: tuple[str, ...]) -> bytes:
    """`content` with weights and biases of the layers in `scopes` (output tensor names) as in `original`, a file of the same graph."""
    model, source = flatbuffer.load(content), flatbuffer.load(original)
    for layer in find(model):
        if f"{layer.name};" in scopes:
            for index in (layer.weight, layer.bias) if layer.bias >= 0 else (layer.weight,):
                values = flatbuffer.data(source, source.subgraphs[0].tensors[index])
                model.subgraphs[0].tensors[index].buffer = flatbuffer.add_constant(model, values)
    flatbuffer.merge_buffers(model, share=False)
    return flatbuffer.dump(model)


def to_matrix(kind: str, weight: Array) -> Array:
    """A stored weight as [outputs, k]."""
    if kind == "DEPTHWISE_CONV_2D":  # [1, height, width, channels * multiplier]
        return weight.reshape(-1, weight.shape[3]).T
    return weight.reshape(weight.shape[0], -1)


def from_matrix(kind: str, matrix: Array, shape: tuple[int, ...]) -> Array:
    """[outputs, k] back in the stored layout."""
    return (matrix.T if kind == "DEPTHWISE_CONV_2D" else matrix).reshape(shape)


def channel_shape(kind: str, values: Array, rank: int) -> Array:
    """One value per output channel, shaped to broadcast against the stored weight."""
    shape = [1] * rank
    shape[CHANNEL_AXIS[kind]] = -1
    return values.reshape(shape)


def columns(layer: LiteLayer, values: Array, count: int, seed: int) -> Array:
    """What the layer's kernel sees at `count` output positions: float32 [groups, samples, k]. The same seed picks the same positions."""
    import numpy as np

    random = np.random.default_rng(seed)
    if layer.kind == "FULLY_CONNECTED":
        rows = values.reshape(-1, layer.window[0])
        return rows[_pick(random, rows.shape[0], count)][None]
    patches = _patches(layer, values, random, count)
    samples, height, width, channels = patches.shape
    split = patches.reshape(samples, height * width, layer.groups, channels // layer.groups)
    return np.ascontiguousarray(split.transpose(2, 0, 1, 3).reshape(layer.groups, samples, -1))


def _patches(layer: LiteLayer, values: Array, random: Any, count: int) -> Array:
    import numpy as np

    kernel, stride, dilation, same = layer.window[0:2], layer.window[2:4], layer.window[4:6], layer.window[6]
    reach = [(kernel[a] - 1) * dilation[a] + 1 for a in (0, 1)]
    size = values.shape[1:3]
    out = [-(-size[a] // stride[a]) if same else (size[a] - reach[a]) // stride[a] + 1 for a in (0, 1)]
    before = [max((out[a] - 1) * stride[a] + reach[a] - size[a], 0) // 2 if same else 0 for a in (0, 1)]
    chosen = _pick(random, values.shape[0] * out[0] * out[1], count)
    image, place = np.divmod(chosen, out[0] * out[1])
    row = (place // out[1] * stride[0] - before[0])[:, None] + np.arange(kernel[0]) * dilation[0]
    column = (place % out[1] * stride[1] - before[1])[:, None] + np.arange(kernel[1]) * dilation[1]
    inside = ((row >= 0) & (row < size[0]))[:, :, None] & ((column >= 0) & (column < size[1]))[:, None, :]
    found = values[image[:, None, None], np.clip(row, 0, size[0] - 1)[:, :, None], np.clip(column, 0, size[1] - 1)[:, None, :]]
    return np.where(inside[..., None], found, np.float32(0))


def _pick(random: Any, available: int, count: int) -> Array:
    import numpy as np

    return np.arange(available) if available <= count else np.sort(random.choice(available, count, replace=False))


def _plain(model: Any, op: Any) -> bool:
    graph = model.subgraphs[0]
    float32 = flatbuffer.schema().TensorType.FLOAT32
    weight = graph.tensors[op.inputs[1]]
    if weight.type != float32 or graph.tensors[op.inputs[0]].type != float32 or flatbuffer.constant(model, weight) is None:
        return False
    return flatbuffer.op_name(model, op) != "FULLY_CONNECTED" or not op.builtinOptions or op.builtinOptions.weightsFormat == 0


def _describe(model: Any, position: int, kind: str) -> LiteLayer:
    graph = model.subgraphs[0]
    op = graph.operators[position]
    shape = [int(size) for size in graph.tensors[op.inputs[1]].shape]
    channels = int(graph.tensors[op.inputs[0]].shape[-1])
    bias = int(op.inputs[2]) if len(op.inputs) > 2 else -1
    if bias >= 0 and flatbuffer.constant(model, graph.tensors[bias]) is None:
        bias = -1
    groups = {"CONV_2D": channels // shape[-1], "DEPTHWISE_CONV_2D": channels, "FULLY_CONNECTED": 1}[kind]
    options = op.builtinOptions
    window: tuple[int, ...] = (shape[-1],)
    if kind != "FULLY_CONNECTED":
        same = int(options.padding == flatbuffer.schema().Padding.SAME)
        window = (shape[1], shape[2], options.strideH, options.strideW, options.dilationHFactor, options.dilationWFactor, same)
    name = flatbuffer.text(graph.tensors[op.outputs[0]].name)
    return LiteLayer(position, kind, name, int(op.inputs[0]), int(op.inputs[1]), bias, int(op.outputs[0]), groups, window)
