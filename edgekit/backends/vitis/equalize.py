"""Scaling channels so that every one of them uses its int8 grid, in a network that computes the same."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from edgekit.backends.vitis import channels, factors
from edgekit.backends.vitis.net import Net, Unit, attribute
from edgekit.backends.vitis.observe import Seen
from edgekit.tensors import Array

LEVEL_POSITION = 4
"""Where a rectified tensor saturates after scaling: at 127 steps of 2^-4."""

LEVEL = 127 / 2**LEVEL_POSITION

MARGIN, FLOOR = 1.25, 0.25
"""A channel that stays below its bound may get a lower one, this far above what it reaches, and at least this share of what it had:
samples show less than the field."""


@dataclasses.dataclass(frozen=True)
class Equalized:
    """A scaled network, what its tensors reach, and the tensors whose bound is where int8 of `LEVEL_POSITION` saturates."""

    net: Net
    seen: dict[str, Seen]
    saturated: tuple[str, ...]


def equalize(net: Net, units: Sequence[Unit], seen: Mapping[str, Seen], held: Collection[str] = ()) -> Equalized:
    """Scale the network's channels by the factors of least rounding noise; those of tensors with a bound in `held` stay.

    Layers between must be positively homogeneous (Nagel et al. 2019, «Data-Free Quantization Through Weight Equalization and Bias
    Correction»). ReLU6 is not, but int8 saturation is a bound as well: channels that reach 6 get one common factor that puts 6 at the
    last integer, others any that keeps what they reach below it, and a plain ReLU remains.
    """
    import numpy as np

    bounds = {name: bound for name, bound in channels.saturating_clips(net, units).items() if name not in held}
    found = channels.classes(net, units, bounds)
    bounds = {name: bound for name, bound in bounds.items() if name in found}
    layers = channels.linears(net, units)
    sensitivity = channels.sensitivities(net, units, seen)
    reach = {name: _reach(seen[name], bound) for name, bound in bounds.items()}
    clamped = {name: reach[name] >= bound for name, bound in bounds.items()}
    groups = {name: _group(net, name, found, clamped) for name in dict.fromkeys(found.values())}
    tensors = [factors.Tensor(name, reach.get(name, one.largest.astype(np.float64)), sensitivity[name]) for name, one in seen.items()]
    energy = {layer.source: seen[layer.source].energy for layer in layers}
    made = factors.solve(factors.Problem(layers, tensors, energy, sensitivity, found, groups))
    for name in bounds:
        made[found[name]] = _below_level(made[found[name]], reach[name], clamped[name])
    scaled = {name: seen[name].scaled(made[found[name]], LEVEL if name in bounds else None) if name in found else seen[name] for name in seen}
    return Equalized(_apply(net, layers, found, made, tuple(bounds)), scaled, tuple(bounds))


def _reach(seen: Seen, bound: float) -> Array:
    """How far the channels of a bounded tensor must be able to reach."""
    import numpy as np

    found: Array = np.clip(seen.largest.astype(np.float64) * MARGIN, FLOOR * bound, bound)
    return found


def _group(net: Net, name: str, found: Mapping[str, str], clamped: Mapping[str, Array]) -> Array:
    """A free logarithm for every channel; one for all channels that are clamped."""
    import numpy as np

    width = net.shapes[name][1]
    together = np.zeros(width, bool)
    for tensor, at in clamped.items():
        if found[tensor] == name:
            together |= at
    group = np.cumsum(~together)
    return np.unique(group * ~together, return_inverse=True)[1]


def _below_level(made: Array, reach: Array, clamped: Array) -> Array:
    """The factors in the measure that puts the bound of clamped channels at the level, and no other channel's reach above it."""
    import numpy as np

    top = float((made * reach)[clamped].max() if clamped.any() else (made * reach).max())
    found: Array = np.minimum(made, top / reach) * (LEVEL / top)
    return found


def _apply(net: Net, layers: Sequence[channels.Linear], found: Mapping[str, str], made: Mapping[str, Array], saturated: Sequence[str]) -> Net:
    import numpy as np

    constants = dict(net.constants)
    for layer in layers:
        node, (u, v) = layer.node, (made[found[name]] if name in found else None for name in (layer.source, layer.output))
        weight = constants[node.input[1]].astype(np.float64)
        outputs_first = node.op_type == "Conv" or attribute(node, "transB", 0)
        rows = weight if outputs_first else weight.T
        shape = (-1, *[1] * (rows.ndim - 1))
        rows = rows if v is None else rows * v.reshape(shape)
        rows = rows if u is None else rows / (u.reshape(shape) if attribute(node, "group", 1) > 1 else u.reshape(1, -1, *[1] * (rows.ndim - 2)))
        constants[node.input[1]] = (rows if outputs_first else rows.T).astype(np.float32)
        if v is not None and len(node.input) > 2 and node.input[2]:
            constants[node.input[2]] = (constants[node.input[2]].astype(np.float64).ravel() * v).astype(np.float32)
    nodes = [_offset(net, node, found, made, constants) for node in net.nodes]
    if saturated:
        constants["dpu/level"] = np.array(LEVEL, np.float32)
    nodes = [_leveled(node) if node.output[0] in saturated else node for node in nodes]
    return dataclasses.replace(net, nodes=tuple(nodes), constants=constants)


def _offset(net: Net, node: Any, found: Mapping[str, str], made: Mapping[str, Array], constants: dict[str, Array]) -> Any:
    """The node, with its constant scaled as its channels are where it adds one to them."""
    import numpy as np
    import onnx

    name, stored = node.output[0], [index for index, given in enumerate(node.input) if given in net.constants]
    if node.op_type not in ("Add", "Sub") or name not in found or len(stored) != 1:
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[stored[0]] = f"{name}/offset"
    value = net.constants[node.input[stored[0]]].astype(np.float64).reshape(-1) * made[found[name]]
    constants[f"{name}/offset"] = value.reshape(1, -1, *[1] * (len(net.shapes[name]) - 2)).astype(np.float32)
    return copy


def _leveled(node: Any) -> Any:
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[2] = "dpu/level"
    return copy


def is_level(bound: float) -> bool:
    """Whether rectified int8 saturates at a bound: 127 steps of a power of two."""
    return bound > 0 and math.frexp(bound / 127)[0] == 0.5
