"""Equalizing the channels of activations between the linear layers of an ONNX graph, residual chains as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from edgekit.qdq import layers, protos, stream
from edgekit.qdq.layers import OnnxLayer
from edgekit.quantize import equalize
from edgekit.tensors import Array, Arrays

BALANCE = 0.75
"""How much of the imbalance is taken off the activation; the rest stays, to spare the weights that read it."""

MIN_IMBALANCE = 2.0
"""Below this ratio of the widest channel to the typical one there is nothing to gain."""

CHANNELWISE = frozenset(("Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Identity", "Dropout"))
"""Operators of one activation that give channel c of axis 1 from channel c alone, and s x where they are given s x (s > 0)."""


@dataclasses.dataclass(frozen=True)
class Chain:
    """Activations that must be scaled alike, the layers that make them and the layers that read them."""

    names: tuple[str, ...]
    makers: tuple[OnnxLayer, ...]
    readers: tuple[OnnxLayer, ...]


def equalized(proto: Any, samples: Sequence[Arrays]) -> tuple[Any, tuple[str, ...]]:
    """A graph of the same function whose chains have channels of like reach, and the activations that gained most of each.

    `proto` is canonical. Where nothing is to be gained it is returned as it is.
    """
    chains = find(proto)
    if not chains or not samples:
        return proto, ()
    reach = _reach(proto, sorted({name for chain in chains for name in chain.names}), samples)
    made, values, touched = protos.copy(proto), protos.constants(proto), []
    for chain in chains:
        widest = max(chain.names, key=lambda name: equalize.imbalance(reach[name]))
        if equalize.imbalance(reach[widest]) >= MIN_IMBALANCE:
            _rescale(values, chain, equalize.factors(equalize.joint([reach[name] for name in chain.names]), _read(values, chain), BALANCE))
            touched.append(widest)
    for name in {name for chain in chains for layer in (*chain.makers, *chain.readers) for name in (layer.weight, layer.bias) if name}:
        protos.set_constant(made, name, values[name])
    return made, tuple(touched)


def find(proto: Any) -> list[Chain]:
    """Chains of which every maker and reader is a linear layer, or an operator inside the chain that scales with its input."""
    graph, ranks = proto.graph, protos.ranks(proto)
    found = {layer.node: layer for layer in layers.find(proto)}
    closed = {value.name for value in (*graph.input, *graph.output)}
    tied = _tied(graph.node, found)
    chains, seen = [], set[str]()
    for layer in found.values():
        group = tied.get(layer.output, frozenset((layer.output,)))
        if layer.output in seen or group & closed:
            continue
        seen |= group
        touching = [(i, n) for i, n in enumerate(graph.node) if group & {*n.input, *n.output}]
        makers = tuple(found[i] for i, n in touching if i in found and n.output[0] in group)
        readers = tuple(found[i] for i, n in touching if i in found and n.input[0] in group)
        inside = all(i in found or ({n.input[0], *n.output} <= group and _scales(n, group)) for i, n in touching)
        if readers and inside and all(_plain(one, ranks) for one in (*makers, *readers)):
            chains.append(Chain(tuple(sorted(group)), makers, readers))
    return chains


def _tied(nodes: Sequence[Any], found: Mapping[int, OnnxLayer]) -> dict[str, frozenset[str]]:
    """By activation, all that must be scaled as it is."""
    group: dict[str, frozenset[str]] = {}
    for index, node in enumerate(nodes):
        if index in found or node.op_type not in (*CHANNELWISE, "Add"):
            continue
        joined = frozenset(name for name in (*node.input, *node.output) if name)
        joined = joined.union(*(group.get(name, frozenset()) for name in joined))
        group |= dict.fromkeys(joined, joined)
    return group


def _scales(node: Any, group: frozenset[str]) -> bool:
    return node.op_type in CHANNELWISE or (node.op_type == "Add" and set(node.input) <= group)


def _plain(layer: OnnxLayer, ranks: Mapping[str, int]) -> bool:
    """Whether channels of what the layer reads and makes lie on axis 1."""
    if layer.kind in ("Gemm", "MatMul"):
        return ranks.get(layer.input) == 2
    return layer.kind == "Conv" or layer.groups == 1


def _reach(proto: Any, names: Sequence[str], samples: Sequence[Arrays]) -> dict[str, Array]:
    import numpy as np

    run = stream.taps(proto, names)
    reach: dict[str, Array] = {}
    for sample in samples:
        for name, values in run(sample).items():
            found = np.abs(np.moveaxis(values, 1, 0)).reshape(values.shape[1], -1).max(axis=1)
            reach[name] = np.maximum(reach.get(name, found), found)
    return reach


def _by_input(layer: OnnxLayer, weight: Array) -> Array:
    """A weight as [groups, outputs / groups, inputs / groups, taps]."""
    matrix, groups = layer.to_matrix(weight), layer.groups
    width = matrix.shape[1] if layer.kind in ("Gemm", "MatMul") else weight.shape[1 if layer.kind == "Conv" else 0]
    return matrix.reshape(groups, -1, width, matrix.shape[1] // width)


def _read(values: Mapping[str, Array], chain: Chain) -> Array:
    """The largest weight that reads each channel."""
    import numpy as np

    found: Array = np.max([np.abs(_by_input(layer, values[layer.weight])).max(axis=(1, 3)).reshape(-1) for layer in chain.readers], axis=0)
    return found


def _rescale(values: dict[str, Array], chain: Chain, factors: Array) -> None:
    import numpy as np

    for layer in chain.makers:
        weight = values[layer.weight]
        values[layer.weight] = layer.from_matrix((layer.to_matrix(weight) / factors[:, None]).astype(np.float32), weight.shape)
        if layer.bias:
            bias = values[layer.bias]
            values[layer.bias] = (bias.reshape(-1) / factors).astype(np.float32).reshape(bias.shape)
    for layer in chain.readers:
        weight = values[layer.weight]
        moved = _by_input(layer, weight) * factors.reshape(layer.groups, 1, -1, 1)
        values[layer.weight] = layer.from_matrix(moved.reshape(layer.to_matrix(weight).shape).astype(np.float32), weight.shape)
