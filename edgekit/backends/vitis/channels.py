"""Which tensors can be scaled channel by channel without changing the network, and how much noise in each channel reaches the outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgekit.backends.vitis.net import Net, Unit, attribute
from edgekit.backends.vitis.observe import Seen
from edgekit.tensors import Array

HOMOGENEOUS = ("Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Resize", "Identity")
"""Operators of one tensor that keep its channels apart and give a times f(x) for a times x, a > 0."""

FLATTENED = ("Flatten", "Squeeze", "Reshape")


@dataclasses.dataclass(frozen=True)
class Linear:
    """A linear operator with constant weights: `reach` [outputs, inputs] is the largest magnitude over the kernel's taps, or [channels] of a
    depthwise one.
    """

    node: Any
    source: str
    output: str
    reach: Array
    squares: Array
    taps: int
    bias: Array


def linears(net: Net, units: Sequence[Unit]) -> list[Linear]:
    """Convolutions (plain and depthwise) and dense layers of images or vectors that the accelerator takes."""
    found = (_linear(net, unit.head) for unit in units if unit.on_dpu)
    return [one for one in found if one is not None]


def _linear(net: Net, node: Any) -> Linear | None:
    import numpy as np

    if node.op_type not in ("Conv", "Gemm", "MatMul"):
        return None
    weight, rank = net.constants[node.input[1]].astype(np.float64), len(net.shapes[node.input[0]])
    if node.op_type != "Conv":
        if rank != 2 or weight.ndim != 2:
            return None
        weight = (weight if attribute(node, "transB", 0) else weight.T)[:, :, None]
    groups, flat = attribute(node, "group", 1), weight.reshape(*weight.shape[:2], -1)
    if groups > 1:
        if groups != net.shapes[node.input[0]][1] or groups != len(weight):
            return None
        flat = flat[:, 0]
    bias = net.constants[node.input[2]].astype(np.float64).ravel() if len(node.input) > 2 and node.input[2] else np.zeros(len(weight))
    return Linear(node, node.input[0], node.output[0], np.abs(flat).max(axis=-1), (flat**2).sum(axis=-1), flat.shape[-1], bias)


def classes(net: Net, units: Sequence[Unit], saturating: Mapping[str, float]) -> dict[str, str]:
    """Tensor -> the name of its class: tensors of a class are scaled by the same factors, channel by channel.

    Tensors that other operators read are left out. `saturating` names the results of Clip operators whose bound may move (with the bound).
    """
    parent: dict[str, str] = {}
    frozen = {*net.inputs, *net.outputs}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    taken = {one.node.output[0] for one in linears(net, units)}
    for unit in units:
        for node in unit.nodes:
            names = [name for name in (*net.data(node), *node.output) if name]
            if node.output[0] in taken:
                continue
            if unit.on_dpu and (gate := _gate(net, node)):
                names.remove(gate)
                frozen.add(gate)
                parent[root(names[1])] = root(names[0])
            elif unit.on_dpu and _joins(net, node, saturating):
                for name in names[1:]:
                    parent[root(name)] = root(names[0])
            else:
                frozen |= set(names)
    stuck = {root(name) for name in frozen if name in parent} | _held(net, root, saturating)
    used = {name for one in linears(net, units) for name in (one.source, one.output)} | set(parent)
    return {name: root(name) for name in sorted(used) if name not in frozen and root(name) not in stuck and len(net.shapes[name]) > 1}


def _joins(net: Net, node: Any, saturating: Mapping[str, float]) -> bool:
    """Whether all tensors around an operator can share their factors."""
    data, out = net.data(node), node.output[0]
    shapes = [net.shapes.get(name, ()) for name in (*data, out)]
    if any(len(shape) < 2 for shape in shapes):
        return False
    if node.op_type in ("Add", "Sub"):
        return len(set(shapes)) == 1 and all(_varies_by_channel(net, name, shapes[0]) for name in node.input if name in net.constants)
    if node.op_type == "Clip":
        return out in saturating
    if node.op_type == "Mul":
        return len(data) == 1 and all(net.constants[name].size == 1 for name in node.input if name in net.constants)
    if node.op_type in FLATTENED:
        return shapes[0][1] == shapes[1][1] and math.prod(shapes[0][2:]) == 1
    return node.op_type in HOMOGENEOUS


def _gate(net: Net, node: Any) -> str:
    """The factor of a product that stays as it is while the other and the product are scaled; empty where there is none."""
    data = list(dict.fromkeys(net.data(node)))
    if node.op_type != "Mul" or len(data) != 2 or any(len(net.shapes.get(name, ())) < 2 for name in data):
        return ""
    makers = {name: other for other in net.nodes for name in other.output}
    whole = [name for name in data if net.shapes[name] == net.shapes[node.output[0]]]
    gates = [name for name in data if _bounded(net, makers, name) and [other for other in whole if other != name]]
    return gates[0] if len(gates) == 1 else ""


def _bounded(net: Net, makers: Mapping[str, Any], name: str) -> bool:
    """Whether a tensor is a (hard) sigmoid, through constant factors or not."""
    maker = makers.get(name)
    while maker is not None and maker.op_type in ("Mul", "Reshape") and len(net.data(maker)) == 1:
        maker = makers.get(net.data(maker)[0])
    return maker is not None and maker.op_type in ("HardSigmoid", "Sigmoid")


def _varies_by_channel(net: Net, name: str, shape: tuple[int, ...]) -> bool:
    """Whether a constant is one number, or one a channel."""
    value = net.constants[name]
    full = (1,) * (len(shape) - value.ndim) + value.shape
    return value.size == 1 or (len(full) == len(shape) and full[1] == shape[1] == value.size)


def _held(net: Net, root: Callable[[str], str], saturating: Mapping[str, float]) -> set[str]:
    """Classes with a moving bound that an Add or a gate touches: its shifts could ask for another position than the bound's."""
    bounded = {root(name) for name in saturating}
    moved = (node for node in net.nodes if node.op_type in ("Add", "Sub", "Mul") and len(node.input) == 2)
    return {root(name) for node in moved if node.op_type != "Mul" or _gate(net, node) for name in node.output if root(name) in bounded}


def saturating_clips(net: Net, units: Sequence[Unit]) -> dict[str, float]:
    """Results of Clip(0, bound) fused into an operator of the accelerator: rectified integers saturate, at a bound that scaling can move."""
    found = {}
    for unit in units:
        last = unit.nodes[-1]
        if not unit.on_dpu or len(unit.nodes) < 2 or last.op_type != "Clip" or last.output[0] in net.outputs:
            continue
        limits = [float(net.constants[name].ravel()[0]) if name in net.constants else math.nan for name in (*last.input[1:], "")][:2]
        if limits[0] == 0 and limits[1] > 0:
            found[last.output[0]] = limits[1]
    return found


def sensitivities(net: Net, units: Sequence[Unit], seen: Mapping[str, Seen]) -> dict[str, Array]:
    """Tensor -> float64 [channels]: by how much white noise of power 1 in each channel raises the power of noise at the network's outputs.

    A first-order estimate: powers of noise add, a linear operator multiplies them by its squared weights, an activation passes the
    share of values on its slope. Operators that it does not know pass the mean of their output to every channel.
    """
    import numpy as np

    found = {name: np.zeros(_width(net, name)) for name in net.shapes if name not in net.constants}
    for name in net.outputs:
        found[name] += 1.0
    for unit in reversed(units):
        for node in reversed(unit.nodes):
            given = found[node.output[0]]
            for name in net.data(node):
                found[name] = found[name] + _passed(net, node, name, given, seen)
    return found


def _width(net: Net, name: str) -> int:
    shape = net.shapes[name]
    return max(1, shape[1]) if len(shape) > 1 else 1


def _passed(net: Net, node: Any, name: str, given: Array, seen: Mapping[str, Seen]) -> Array:
    import numpy as np

    kind, width = node.op_type, _width(net, name)
    linear = _linear(net, node) if kind in ("Conv", "Gemm", "MatMul") and node.input[1] in net.constants else None
    passed = given
    if linear is not None:
        passed = linear.squares * given if linear.squares.ndim == 1 else given @ linear.squares
        passed = passed / math.prod(attribute(node, "strides", [1]))
    elif kind in ("Relu", "Clip", "LeakyRelu") and node.output[0] in seen:
        values = seen[node.output[0]].values
        off = (values <= 0) | (values >= values.max(initial=0.0)) if kind == "Clip" else values <= 0
        passed = given * (1 - off.mean(axis=0))
    elif kind == "HardSigmoid" and name in seen:
        passed = given * (np.abs(seen[name].values) < 3).mean(axis=0) / 36
    elif kind in ("GlobalAveragePool", "AveragePool"):
        passed = given / math.prod(net.shapes[name][2:] if kind == "GlobalAveragePool" else attribute(node, "kernel_shape"))
    elif kind == "Mul":
        power = _power(net, next((other for other in node.input if other != name), name), seen)
        passed = given * (power if power.size in (1, len(given)) else power.mean())
    return passed if len(passed) == width else np.full(width, float(passed.mean()))


def _power(net: Net, name: str, seen: Mapping[str, Seen]) -> Array:
    """Mean square of a factor, by channel."""
    import numpy as np

    if name in seen:
        return seen[name].energy
    found: Array = net.constants[name].astype(np.float64).ravel() ** 2 if name in net.constants else np.ones(1)
    return found
