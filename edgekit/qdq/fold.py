"""Taking multiplications and additions by constants into the linear layers beside them: each one less is one rounding less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from edgekit.qdq import layers, protos
from edgekit.qdq.layers import OnnxLayer
from edgekit.tensors import Array

AFFINE = ("Mul", "Div", "Add", "Sub")


def folded(proto: Any) -> tuple[Any, int]:
    """A canonical graph of the same function, and how many operators went into layers.

    Behind a layer that it alone reads: any constant that is the same for all places of a channel. Before layers: factors that are the
    same for all channels, also through an addition of such a constant.
    """
    made, values, count = protos.copy(proto), protos.constants(proto), 0
    while step := _behind(made, values) or _before(made, values):
        count += 1
        for name in step:
            protos.set_constant(made, name, values[name])
    return made, count


def _behind(proto: Any, values: dict[str, Array]) -> list[str]:
    """Fold one operator into the layer before it: the names of the constants that changed."""
    import numpy as np

    nodes, closed = proto.graph.node, {value.name for value in proto.graph.output}
    read, ranks = protos.consumers(nodes), protos.ranks(proto)
    for layer in layers.find(proto):
        readers = read.get(layer.output, [])
        if len(readers) != 1 or layer.output in closed or not layer.bias:
            continue
        node, weight = nodes[readers[0]], values[layer.weight]
        constant = _operand(node, layer.output, values)
        outputs = values[layer.bias].size
        per_channel = None if constant is None else _per_channel(layer, constant, outputs, ranks.get(layer.output, 0))
        if per_channel is None or (layer.kind == "ConvTranspose" and layer.groups > 1):
            continue
        factor, shift = _affine(node, layer.output, per_channel)
        matrix = layer.to_matrix(weight) * factor[:, None]
        values[layer.weight] = layer.from_matrix(matrix.astype(np.float32), weight.shape)
        bias = values[layer.bias]
        values[layer.bias] = (bias.reshape(-1) * factor + shift).astype(np.float32).reshape(bias.shape)
        nodes[layer.node].output[0] = node.output[0]
        del nodes[readers[0]]
        return [layer.weight, layer.bias]
    return []


def _before(proto: Any, values: dict[str, Array]) -> list[str]:
    """Fold one scalar factor into all layers that read it, or that read its sum with a scalar: the names of the constants that changed."""
    import numpy as np

    nodes, found = proto.graph.node, {layer.node: layer for layer in layers.find(proto)}
    read, closed = protos.consumers(nodes), {value.name for value in proto.graph.output}
    for index, node in enumerate(nodes):
        source = next((name for name in node.input if name not in values), "")
        factor = _factor(node, source, values)
        if factor is None or node.output[0] in closed:
            continue
        adder = _adder(nodes, read.get(node.output[0], []), node.output[0], closed, values)
        last = node.output[0] if adder is None else adder.output[0]
        readers = read.get(last, [])
        if not readers or any(reader not in found or found[reader].input != last for reader in readers):
            continue
        changed = [found[reader].weight for reader in readers]
        for name in changed:
            values[name] = (values[name] * factor).astype(np.float32)
        _skip(proto, index, source)
        return changed if adder is None else [*changed, _divided_shift(adder, factor, values)]
    return []


def _factor(node: Any, source: str, values: Mapping[str, Array]) -> float | None:
    """What an operator multiplies `source` by, where that is one number other than zero."""
    constant = _operand(node, source, values) if node.op_type in ("Mul", "Div") else None
    if constant is None or constant.size != 1 or float(constant.reshape(())) == 0:
        return None
    return float(_affine(node, source, constant.reshape(-1))[0][0])


def _adder(nodes: Any, readers: Sequence[int], name: str, closed: Set[str], values: Mapping[str, Array]) -> Any:
    """The addition of one number that alone reads `name`; None where there is no such."""
    node = nodes[readers[0]] if len(readers) == 1 else None
    if node is None or node.op_type != "Add" or node.output[0] in closed:
        return None
    shift = _operand(node, name, values)
    return node if shift is not None and shift.size == 1 else None


def _divided_shift(adder: Any, factor: float, values: dict[str, Array]) -> str:
    """Let an addition take its number before the factor; the name of that."""
    import numpy as np

    name, made = next(n for n in adder.input if n in values), f"{adder.output[0]}/shift"
    values[made] = (values[name] / factor).astype(np.float32)
    adder.input[list(adder.input).index(name)] = made
    return made


def _skip(proto: Any, index: int, source: str) -> None:
    """Remove a node; what read its output reads `source`."""
    gone = proto.graph.node[index].output[0]
    for node in proto.graph.node:
        for place, name in enumerate(node.input):
            if name == gone:
                node.input[place] = source
    del proto.graph.node[index]


def _operand(node: Any, activation: str, values: Mapping[str, Array]) -> Array | None:
    """The float constant beside `activation` in an affine operator; a constant divided by an activation is none."""
    if node.op_type not in AFFINE or len(node.input) != 2 or list(node.input).count(activation) != 1:
        return None
    other = node.input[1 - list(node.input).index(activation)]
    first = node.input[0] == activation
    if other not in values or values[other].dtype != "float32" or not values[other].size or (node.op_type == "Div" and not first):
        return None
    return values[other]


def _per_channel(layer: OnnxLayer, constant: Array, outputs: int, rank: int) -> Array | None:
    """The constant as one value an output channel; None where it varies over other axes."""
    import numpy as np

    if constant.size == 1:
        return np.full(outputs, float(constant.reshape(())))
    axis = 1 if layer.kind in ("Conv", "ConvTranspose") else rank - 1
    if rank == 0 or constant.ndim > rank:
        return None
    shape = (1,) * (rank - constant.ndim) + constant.shape
    same = all(size == 1 for place, size in enumerate(shape) if place != axis) and shape[axis] == outputs
    return constant.reshape(-1).astype(np.float64) if same else None


def _affine(node: Any, activation: str, constant: Array) -> tuple[Array, Array]:
    """The operator as factor x + shift."""
    import numpy as np

    one, zero = np.ones_like(constant), np.zeros_like(constant)
    if node.op_type == "Mul":
        return constant, zero
    if node.op_type == "Div":
        return one / constant, zero
    if node.op_type == "Add":
        return one, constant
    return (one, -constant) if node.input[0] == activation else (-one, constant)
