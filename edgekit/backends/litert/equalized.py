"""Equalizing the channels of activations between the linear layers of a `.tflite`, residual chains as a whole."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgekit.backends.litert import layers, running
from edgekit.backends.litert.layers import LiteLayer
from edgekit.backends.litert.source import Source
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize import equalize
from edgekit.tensors import Array

BALANCE = 0.75
"""How much of the imbalance is taken off the activation; the rest stays, to spare the weights that read it."""

MIN_IMBALANCE = 2.0
"""Below this ratio of the widest channel to the typical one there is nothing to gain."""


@dataclasses.dataclass(frozen=True)
class Chain:
    """Activations that must be scaled alike (joined by ADD), the layers that make them and the layers that read them."""

    tensors: tuple[int, ...]
    makers: tuple[LiteLayer, ...]
    readers: tuple[LiteLayer, ...]


def equalized(source: Source) -> tuple[bytes, tuple[str, ...]]:
    """The float model with its chains equalized, and the names of the activations that gained; it computes the same function."""
    model = source.fresh()
    chains = find(model, layers.find(model))
    taps = sorted({tensor for chain in chains for tensor in chain.tensors})
    if not chains or not source.samples:
        return source.content, ()
    reach = _reach(source, model, taps)
    touched = []
    for chain in chains:
        flat = max(chain.tensors, key=lambda tensor: equalize.imbalance(reach[tensor]))
        if equalize.imbalance(reach[flat]) < MIN_IMBALANCE:
            continue
        _rescale(model, chain, equalize.factors(equalize.joint([reach[tensor] for tensor in chain.tensors]), _read(model, chain), BALANCE))
        touched.append(flatbuffer.text(model.subgraphs[0].tensors[flat].name))
    flatbuffer.merge_buffers(model, share=False)
    return (flatbuffer.dump(model), tuple(touched)) if touched else (source.content, ())


def find(model: Any, found: list[LiteLayer]) -> list[Chain]:
    """Chains whose every maker and reader is a layer of `found` or an ADD inside the chain, with no or a ReLU activation in between."""
    makers, readers = {layer.output: layer for layer in found}, _readers(found)
    graph = model.subgraphs[0]
    closed = {int(i) for i in (*graph.inputs, *graph.outputs)}
    chains, seen = [], set[int]()
    for layer in found:
        if layer.output in seen:
            continue
        group = _joined(model, layer.output)
        seen |= group
        if not group & closed and all(_scalable(model, tensor, group, makers, readers) for tensor in group):
            made = tuple(makers[tensor] for tensor in sorted(group) if tensor in makers)
            read = tuple(reader for tensor in sorted(group) for reader in readers.get(tensor, ()))
            if read:
                chains.append(Chain(tuple(sorted(group)), made, read))
    return chains


def _readers(found: list[LiteLayer]) -> dict[int, list[LiteLayer]]:
    readers: dict[int, list[LiteLayer]] = {}
    for layer in found:
        readers.setdefault(layer.input, []).append(layer)
    return readers


def _joined(model: Any, start: int) -> set[int]:
    """All tensors tied to `start` by ADD operators."""
    adds = [{int(i) for i in (*op.inputs, *op.outputs)} for op in model.subgraphs[0].operators if flatbuffer.op_name(model, op) == "ADD"]
    group, grown = {start}, True
    while grown:
        before = len(group)
        for tied in adds:
            if tied & group:
                group |= tied
        grown = len(group) > before
    return group


def _scalable(model: Any, tensor: int, group: set[int], makers: dict[int, LiteLayer], readers: dict[int, list[LiteLayer]]) -> bool:
    graph = model.subgraphs[0]
    shape = graph.tensors[tensor].shape
    first = graph.tensors[min(group)].shape
    if shape is None or len(shape) == 0 or list(shape) != list(first) or flatbuffer.constant(model, graph.tensors[tensor]) is not None:
        return False
    produced = [op for op in graph.operators if tensor in {int(i) for i in op.outputs}]
    consumed = [op for op in graph.operators if tensor in {int(i) for i in op.inputs}]
    around = [layer for layer in (makers.get(tensor), *readers.get(tensor, ())) if layer]
    known = {layer.op for layer in around if not layer.ties}
    inside = all(flatbuffer.op_name(model, op) == "ADD" or graph.operators.index(op) in known for op in (*produced, *consumed))
    plain = _activation(model, tensor) in ("NONE", "RELU")
    return len(produced) == 1 and inside and plain and all(_channelwise(model, reader) for reader in readers.get(tensor, ()))


def _activation(model: Any, tensor: int) -> str:
    options = next((op.builtinOptions for op in model.subgraphs[0].operators if tensor in {int(i) for i in op.outputs}), None)
    names: dict[int, str] = {value: name for name, value in vars(flatbuffer.schema().ActivationFunctionType).items() if not name.startswith("_")}
    return names.get(getattr(options, "fusedActivationFunction", 0), "")


def _channelwise(model: Any, reader: LiteLayer) -> bool:
    """Whether input channel c of the reader is the activation's last axis: a dense layer may read a flattened image."""
    shape = model.subgraphs[0].tensors[reader.input].shape
    width = int(model.subgraphs[0].tensors[reader.weight].shape[-1])
    return reader.kind != "FULLY_CONNECTED" or int(shape[-1]) == width


def _reach(source: Source, model: Any, tensors: list[int]) -> dict[int, Array]:
    import numpy as np

    session = running.Taps(model, source.model.signature, tensors)
    reach: dict[int, Array] = {}
    for sample in source.samples:
        for tensor, values in session.run(sample).items():
            found = np.abs(values).reshape(-1, values.shape[-1]).max(axis=0)
            reach[tensor] = np.maximum(reach.get(tensor, found), found)
    return reach


def _read(model: Any, chain: Chain) -> Array:
    """The largest weight that reads each channel."""
    import numpy as np

    found: Array = np.max([_by_input(model, reader) for reader in chain.readers], axis=0)
    return found


def _by_input(model: Any, reader: LiteLayer) -> Array:
    import numpy as np

    weight = np.abs(flatbuffer.data(model, model.subgraphs[0].tensors[reader.weight]))
    if reader.kind == "DEPTHWISE_CONV_2D":
        found: Array = weight.reshape(-1, reader.groups, weight.shape[-1] // reader.groups).max(axis=(0, 2))
    else:
        found = weight.reshape(reader.groups, -1, weight.shape[-1]).max(axis=1).reshape(-1)
    return found


def _rescale(model: Any, chain: Chain, factors: Array) -> None:
    tensors = model.subgraphs[0].tensors
    for maker in chain.makers:
        weight = flatbuffer.data(model, tensors[maker.weight])
        _replace(model, maker.weight, weight / layers.channel_shape(maker.kind, factors, weight.ndim))
        if maker.bias >= 0:
            _replace(model, maker.bias, flatbuffer.data(model, tensors[maker.bias]) / factors)
    for reader in chain.readers:
        weight = flatbuffer.data(model, tensors[reader.weight])
        if reader.kind == "DEPTHWISE_CONV_2D":
            _replace(model, reader.weight, weight * factors.repeat(weight.shape[-1] // len(factors)))
        else:
            by_output = factors.reshape(reader.groups, -1).repeat(weight.shape[0] // reader.groups, axis=0)
            _replace(model, reader.weight, weight * by_output.reshape(weight.shape[0], *([1] * (weight.ndim - 2)), -1))


def _replace(model: Any, tensor: int, values: Array) -> None:
    import numpy as np

    model.subgraphs[0].tensors[tensor].buffer = flatbuffer.add_constant(model, values.astype(np.float32))
