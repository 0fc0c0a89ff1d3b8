"""Exact rewrites that spare the accelerator an operator and its rounding: constant factors and offsets folded into the weights beside them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from edgekit.backends.vitis.net import Net, attribute
from edgekit.tensors import Array

SIXTH = 1 / 6


def fold(net: Net) -> Net:
    """The same network with fewer operators.

    A factor or offset (one number, or one a channel) behind a convolution or Gemm moves into its weights and bias; one in front of such
    layers into theirs, an offset only where no zeros are padded in between. HardSigmoid of another slope than the DPU's 1/6 gets it by
    scaling the layer before: slope * x + 1/2 is HardSigmoid(6 * slope * x) on the DPU.
    """
    rules: tuple[Callable[[Net, Any], Net | None], ...] = (_into_layer_before, _slope_into_layer_before, _into_layers_behind, _factor_behind_offset)
    changed = True
    while changed:
        changed = False
        for node in net.nodes:
            made = next((made for rule in rules if (made := rule(net, node)) is not None), None)
            if made is not None:
                net, changed = made, True
                break
    return net


@dataclasses.dataclass(frozen=True)
class _Affine:
    """A node that computes factor * x + offset with constants of one number, or one a channel."""

    source: str
    factor: Array
    offset: Array


def _affine(net: Net, node: Any) -> _Affine | None:
    import numpy as np

    if node.op_type not in ("Add", "Sub", "Mul", "Div") or len(net.data(node)) != 1 or len(net.shapes.get(node.output[0], ())) not in (2, 4):
        return None
    source, position = net.data(node)[0], 0 if node.input[0] in net.constants else 1
    value = _of_channels(net.constants[node.input[position]], net.shapes[source])
    if value is None or net.shapes[source] != net.shapes[node.output[0]] or (position == 0 and node.op_type == "Div"):
        return None
    one, zero = np.ones(1), np.zeros(1)
    if node.op_type in ("Mul", "Div"):
        return None if node.op_type == "Div" and not value.all() else _Affine(source, value if node.op_type == "Mul" else 1 / value, zero)
    if node.op_type == "Sub":
        return _Affine(source, -one, value) if position == 0 else _Affine(source, one, -value)
    return _Affine(source, one, value)


def _of_channels(value: Array, shape: tuple[int, ...]) -> Array | None:
    """A constant as float64 [1] or [channels], None where it varies otherwise."""
    if value.size == 1:
        return value.astype("float64").reshape(1)
    full = (1,) * (len(shape) - value.ndim) + value.shape
    across = len(full) == len(shape) and full[1] == shape[1] and math.prod(full) == full[1]
    return value.astype("float64").reshape(-1) if across else None


def _layer(net: Net, name: str) -> Any | None:
    """The layer that makes a tensor which one node reads."""
    made = next((node for node in net.nodes if name in node.output), None)
    alone = len(net.readers().get(name, ())) == 1 and name not in net.outputs
    return made if alone and made is not None and _is_layer(net, made) else None


def _is_layer(net: Net, node: Any) -> bool:
    """Whether weights and bias can be rewritten."""
    if node.op_type not in ("Conv", "Gemm") or len(node.input) < 3 or any(name not in net.constants for name in node.input[1:]):
        return False
    plain = all(attribute(node, name, 1.0) == 1.0 for name in ("alpha", "beta")) and not attribute(node, "transA", 0)
    groups = attribute(node, "group", 1)
    whole = groups == 1 or net.constants[node.input[1]].shape[:2] == (groups, 1)
    return plain and whole and net.constants[node.input[2]].size == net.shapes[node.output[0]][1]


def _rows(net: Net, node: Any) -> Array:
    """Weights as float64 [outputs, inputs / groups, taps]."""
    weight = net.constants[node.input[1]].astype("float64")
    weight = weight if node.op_type == "Conv" or attribute(node, "transB", 0) else weight.T
    return weight.reshape(*weight.shape[:2], -1)


def _with(net: Net, node: Any, rows: Array, bias: Array) -> dict[str, Array]:
    """The layer's constants of other weights [outputs, inputs / groups, taps] and bias."""
    kept = net.constants[node.input[1]]
    turned = node.op_type == "Gemm" and not attribute(node, "transB", 0)
    weight = rows[:, :, 0].T if turned else rows.reshape(kept.shape)
    return {node.input[1]: weight.astype("float32"), node.input[2]: bias.reshape(net.constants[node.input[2]].shape).astype("float32")}


def _into_layer_before(net: Net, node: Any) -> Net | None:
    found = _affine(net, node)
    layer = _layer(net, found.source) if found else None
    if found is None or layer is None:
        return None
    rows, bias = _rows(net, layer) * found.factor.reshape(-1, 1, 1), net.constants[layer.input[2]].ravel() * found.factor + found.offset
    joined = _renamed(layer, layer.input, node.output[0])
    nodes = tuple(joined if one is layer else one for one in net.nodes if one is not node)
    return dataclasses.replace(net, nodes=nodes, constants=net.constants | _with(net, layer, rows, bias))


def _slope_into_layer_before(net: Net, node: Any) -> Net | None:
    import onnx

    slope = attribute(node, "alpha", 0.2)
    if node.op_type != "HardSigmoid" or abs(slope - SIXTH) < 1e-6 or slope <= 0 or attribute(node, "beta", 0.5) != 0.5:
        return None
    layer = _layer(net, node.input[0])
    if layer is None:
        return None
    changed = onnx.helper.make_node("HardSigmoid", list(node.input), list(node.output), name=node.name, alpha=SIXTH, beta=0.5)
    constants = _with(net, layer, _rows(net, layer) * slope / SIXTH, net.constants[layer.input[2]].ravel() * slope / SIXTH)
    return dataclasses.replace(net, nodes=tuple(changed if one is node else one for one in net.nodes), constants=net.constants | constants)


def _into_layers_behind(net: Net, node: Any) -> Net | None:
    import numpy as np

    found, readers = _affine(net, node), net.readers().get(node.output[0], [])
    if found is None or not readers or node.output[0] in net.outputs or not all(_is_layer(net, reader) for reader in readers):
        return None
    if found.offset.any() and any(any(attribute(reader, "pads", [0])) or attribute(reader, "auto_pad", b"NOTSET") != b"NOTSET" for reader in readers):
        return None
    constants, width = dict(net.constants), net.shapes[found.source][1]
    factor, offset = (np.broadcast_to(value, (width,)) for value in (found.factor, found.offset))
    for reader in readers:
        rows, deep = _rows(net, reader), attribute(reader, "group", 1) > 1
        shape = (-1, 1) if deep else (1, -1)
        bias = net.constants[reader.input[2]].ravel() + (rows.sum(axis=2) * offset.reshape(shape)).sum(axis=1)
        constants |= _with(net, reader, rows * factor.reshape(*shape, 1), bias)
    nodes = [_renamed(one, [found.source, *one.input[1:]], one.output[0]) if one in readers else one for one in net.nodes if one is not node]
    return dataclasses.replace(net, nodes=tuple(nodes), constants=constants)


def _factor_behind_offset(net: Net, node: Any) -> Net | None:
    """Factor, then offset, then layers: as offset / factor, then factor, which goes on into the layers."""
    import onnx

    found, readers = _affine(net, node), net.readers().get(node.output[0], [])
    if found is None or node.op_type != "Mul" or len(readers) != 1 or node.output[0] in net.outputs or not found.factor.all():
        return None
    after, name = _affine(net, readers[0]), readers[0].output[0]
    behind = net.readers().get(name, [])
    if after is None or readers[0].op_type != "Add" or name in net.outputs or not behind or not all(_is_layer(net, one) for one in behind):
        return None
    offset = (after.offset / found.factor).astype("float32")
    shape = (1, -1, *[1] * (len(net.shapes[name]) - 2)) if offset.size > 1 else (1,)
    constants = net.constants | {f"{node.output[0]}/offset": offset.reshape(shape)}
    first = onnx.helper.make_node("Add", [found.source, f"{node.output[0]}/offset"], [node.output[0]], name=node.output[0])
    position = 0 if node.input[0] in net.constants else 1
    second = onnx.helper.make_node("Mul", [node.output[0], node.input[position]], [name], name=name)
    nodes = tuple(first if one is node else second if one is readers[0] else one for one in net.nodes)
    return dataclasses.replace(net, nodes=nodes, constants=constants)


def _renamed(node: Any, inputs: Any, output: str) -> Any:
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.input[:]
    copy.input.extend(inputs)
    copy.output[0] = output
    return copy
