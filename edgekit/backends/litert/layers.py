"""The linear layers of a `.tflite` as the quantization core sees them, and samples of what they read."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize import windows
from edgekit.quantize.moments import Layer
from edgekit.quantize.windows import Window
from edgekit.tensors import Array

CHANNEL_AXIS = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0, "TRANSPOSE_CONV": 0}
"""Which axis of the weight has a scale of its own each (the format's quantization specification)."""


@dataclasses.dataclass(frozen=True)
class Geometry:
    """A convolution's kernel, stride and dilation (height, width), and whether it pads; `transposed` for the gradient of one."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    same: bool
    transposed: bool = False

    def window(self, given: tuple[int, ...]) -> Window:
        """As it looks at an input of (height, width) `given`."""
        reach = [(self.kernel[a] - 1) * self.dilation[a] + 1 for a in (0, 1)]
        if self.transposed:
            room = [max(self.kernel[a] - self.stride[a], 0) for a in (0, 1)]
            before = [room[a] // 2 if self.same else 0 for a in (0, 1)]
            out = [given[a] * self.stride[a] + (0 if self.same else room[a]) for a in (0, 1)]
            return Window(self.kernel, (1, 1), (-1, -1), (-before[0], -before[1]), (out[0], out[1]), self.stride)
        out = [-(-given[a] // self.stride[a]) if self.same else (given[a] - reach[a]) // self.stride[a] + 1 for a in (0, 1)]
        before = [max((out[a] - 1) * self.stride[a] + reach[a] - given[a], 0) // 2 if self.same else 0 for a in (0, 1)]
        return Window(self.kernel, self.stride, self.dilation, (before[0], before[1]), (out[0], out[1]))


@dataclasses.dataclass(frozen=True)
class LiteLayer:
    """A linear operator of the main graph: its place, the tensors it reads, and its geometry (None for a dense layer).

    `ties` are the places of later operators that multiply by the same weight and add the same bias: an unrolled recurrent layer.
    """

    op: int
    kind: str
    name: str
    input: int
    weight: int
    bias: int
    output: int
    groups: int
    geometry: Geometry | None = None
    ties: tuple[int, ...] = ()

    def layer(self, model: Any) -> Layer:
        """Weights and bias (zero where there is none) as the core wants them."""
        import numpy as np

        tensors = model.subgraphs[0].tensors
        weight = to_matrix(self.kind, flatbuffer.data(model, tensors[self.weight]))
        bias = None if self.bias < 0 else flatbuffer.constant(model, tensors[self.bias])
        return Layer(weight, np.zeros(weight.shape[0], np.float32) if bias is None else bias.reshape(-1), self.groups)


def find(model: Any) -> list[LiteLayer]:
    """The float convolutions and dense layers of the main graph with constant weights, in execution order.

    Weights that several operators read count once, where all of them have one bias and geometry; where they have not, they are left out.
    """
    graph = model.subgraphs[0]
    readers: dict[int, list[Any]] = {}
    for op in (op for g in model.subgraphs for op in g.operators):
        for index in {int(i) for i in op.inputs if i >= 0}:
            readers.setdefault(index, []).append(op)
    buffers = [int(tensor.buffer) for g in model.subgraphs for tensor in g.tensors]
    places = {id(op): place for place, op in enumerate(graph.operators)}
    found = []
    for position, op in enumerate(graph.operators):
        kind = flatbuffer.op_name(model, op)
        if kind in CHANNEL_AXIS and _plain(model, op):
            weight, _ = operands(kind, op)
            tied = readers[weight]
            alone = buffers.count(int(graph.tensors[weight].buffer)) == 1
            if alone and tied[0] is op and (len(tied) == 1 or _alike(model, kind, tied, places)):
                found.append(dataclasses.replace(_describe(model, position, kind), ties=tuple(places[id(other)] for other in tied[1:])))
    return found


def operands(kind: str, op: Any) -> tuple[int, int]:
    """Tensor indices of an operator's weight and bias (-1 where there is none)."""
    place = 3 if kind == "TRANSPOSE_CONV" else 2
    return int(op.inputs[1]), int(op.inputs[place]) if len(op.inputs) > place else -1


def _alike(model: Any, kind: str, tied: list[Any], places: dict[int, int]) -> bool:
    """Whether all readers of a weight are layers of the main graph that look at their inputs alike and add the same bias."""
    if not all(id(op) in places and flatbuffer.op_name(model, op) == kind and _plain(model, op) for op in tied):
        return False
    found = [_describe(model, places[id(op)], kind) for op in tied]
    return len({(layer.weight, layer.bias, layer.groups, layer.geometry) for layer in found}) == 1


ACTING = ("VAR", "HASHTABLE", "CALL", "WHILE", "IF", "CUSTOM", "LSTM", "RNN", "SVDF")
"""Parts of the names of operators that do more than give a result."""


def separate_biases(model: Any) -> bool:
    """Give the layers of each weight a bias tensor and buffer of their own, where converters let equal ones share; whether anything changed."""
    graph, owners, copies = model.subgraphs[0], dict[int, int](), dict[tuple[int, int], int]()
    buffers = [int(tensor.buffer) for g in model.subgraphs for tensor in g.tensors]
    for op in graph.operators:
        kind = flatbuffer.op_name(model, op)
        weight, bias = operands(kind, op) if kind in CHANNEL_AXIS else (-1, -1)
        values = flatbuffer.constant(model, graph.tensors[bias]) if bias >= 0 else None
        alone = values is not None and buffers.count(int(graph.tensors[bias].buffer)) == 1
        if values is None or (alone and owners.setdefault(bias, weight) == weight):
            continue
        if (bias, weight) not in copies:
            own = copy.copy(graph.tensors[bias])
            own.buffer = flatbuffer.add_constant(model, values)
            graph.tensors.append(own)
            copies[bias, weight] = len(graph.tensors) - 1
        op.inputs[3 if kind == "TRANSPOSE_CONV" else 2] = copies[bias, weight]
    return bool(copies)


def forget_unread(model: Any) -> bool:
    """Drop operators whose results nothing reads, and the data of constants that nothing reads: the stock quantizer looks for their values and
    readers. Whether anything changed.
    """
    graphs, dropped = model.subgraphs, _drop_unread(model)
    read = {(n, int(i)) for n, g in enumerate(graphs) for i in (*g.outputs, *(i for op in g.operators for i in op.inputs))}
    unread = [t for n, g in enumerate(graphs) for i, t in enumerate(g.tensors) if (n, i) not in read and flatbuffer.constant(model, t) is not None]
    for tensor in unread:
        tensor.buffer = 0
    return bool(unread) or dropped


def _drop_unread(model: Any) -> bool:
    graph, dropped = model.subgraphs[0], False
    read = {int(i) for i in graph.outputs}
    kept = []
    for op in reversed(graph.operators):
        kind = flatbuffer.op_name(model, op)
        if not read & {int(i) for i in op.outputs} and len(op.outputs) and not any(word in kind for word in ACTING):
            dropped = True
            continue
        read |= {int(i) for i in op.inputs}
        kept.append(op)
    graph.operators = kept[::-1]
    return dropped


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


def columns(layer: LiteLayer, values: Array, width: int, count: int, seed: int) -> Array:
    """What the layer's kernel sees at `count` output positions: float32 [groups, samples, k]. The same seed picks the same positions.

    `width` is k: what a dense layer reads at once.
    """
    if layer.geometry is None:
        return windows.rows(values, width, count, seed)
    window = layer.geometry.window(values.shape[1:3])
    return windows.by_group(windows.patches(window, values, count, seed), layer.groups, channels_first=False)


def _plain(model: Any, op: Any) -> bool:
    graph = model.subgraphs[0]
    float32 = flatbuffer.schema().TensorType.FLOAT32
    kind = flatbuffer.op_name(model, op)
    weight, read = graph.tensors[op.inputs[1]], graph.tensors[op.inputs[2 if kind == "TRANSPOSE_CONV" else 0]]
    if weight.type != float32 or read.type != float32 or flatbuffer.constant(model, weight) is None:
        return False
    return kind != "FULLY_CONNECTED" or not op.builtinOptions or op.builtinOptions.weightsFormat == 0


def _describe(model: Any, position: int, kind: str) -> LiteLayer:
    graph = model.subgraphs[0]
    op = graph.operators[position]
    weight, bias = operands(kind, op)
    read = int(op.inputs[2 if kind == "TRANSPOSE_CONV" else 0])
    shape = [int(size) for size in graph.tensors[weight].shape]
    channels = int(graph.tensors[read].shape[-1])
    if bias >= 0 and flatbuffer.constant(model, graph.tensors[bias]) is None:
        bias = -1
    groups = {"CONV_2D": channels // shape[-1], "DEPTHWISE_CONV_2D": channels}.get(kind, 1)
    name = flatbuffer.text(graph.tensors[op.outputs[0]].name)
    geometry = None if kind == "FULLY_CONNECTED" else _geometry(op.builtinOptions, kind, (shape[1], shape[2]))
    return LiteLayer(position, kind, name, read, weight, bias, int(op.outputs[0]), groups, geometry)


def _geometry(options: Any, kind: str, kernel: tuple[int, int]) -> Geometry:
    same, stride = options.padding == flatbuffer.schema().Padding.SAME, (int(options.strideH), int(options.strideW))
    if kind == "TRANSPOSE_CONV":
        return Geometry(kernel, stride, (1, 1), same, transposed=True)
    return Geometry(kernel, stride, (int(options.dilationHFactor), int(options.dilationWFactor)), same)
