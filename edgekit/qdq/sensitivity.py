"""What an activation costs in 8 bits: the error of the outputs when it alone is rounded to them, everything else as it is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from edgekit.progress import Progress, silent
from edgekit.qdq import layers, protos, stream
from edgekit.qdq.write import MOVERS
from edgekit.quantize.grid import Affine
from edgekit.tensors import Array, Arrays

JUDGES = 2
"""Samples that judge: the error of one rounded activation is a mean over all that it holds already."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one activation in 8 bits: `noise` is its part of the outputs' error power, relative to the outputs' own (worst output).

    `names` are it and what only moves it, which share its grid. In 16 bits its `elements` take a byte more each, and the layers that make
    and read it, convolutions of `weights` values among them, compute in 16 bits.
    """

    noise: float
    elements: int
    weights: int
    names: frozenset[str]

    @property
    def price_bytes(self) -> float:
        """About what 16 bits add to a context binary, from those of QNN SDK 2.51 for a network of 50 convolutions: for each operator a
        little, for values that are tiled, and a fifth of the weights of convolutions that compute in 16 bits (dense layers: nothing).
        """
        return 4096 + 0.025 * self.elements + 0.19 * self.weights


def measure(proto: Any, quantized: Any, samples: Sequence[Arrays], progress: Progress = silent) -> dict[str, Cost]:
    """Costs by activation of a (rounded) float graph that has integers in `quantized`, its 8-bit QDQ form.

    Errors of different activations add up, as they are independent: the noise of a set is close to the sum.
    """
    grids, judges = _grids(quantized), list(samples[:JUDGES])
    names = [name for name in stream.activations(proto) if name in grids]
    run = stream.taps(proto, list(dict.fromkeys([*stream.activations(proto), *_others(proto)])))
    values = [run(sample) for sample in judges]
    groups, found = _groups(proto), layers.find(proto)
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in proto.graph.initializer}
    costs: dict[str, Cost] = {}
    for number, name in enumerate(names):
        progress(number, len(names), "measure sensitivity")
        if name in groups:  # not what a mover gives
            noise = _noise(proto, name, grids[name], values)
            beside = sum(sizes[layer.weight] for layer in found if layer.window != () and groups[name] & {layer.input, layer.output})
            costs[name] = Cost(noise, int(values[0][name].size), beside, groups[name])
    return costs


def worth(costs: Mapping[str, Cost], least: float, budget_bytes: float) -> frozenset[str]:
    """The activations to store in 16 bits, most noise a byte first, within about `budget_bytes`, until the others' noise is at most `least`."""
    left, spent, chosen = sum(cost.noise for cost in costs.values()), 0.0, frozenset[str]()
    for cost in sorted(costs.values(), key=lambda c: (-c.noise / c.price_bytes, sorted(c.names))):
        if left > least and spent + cost.price_bytes <= budget_bytes:
            chosen |= cost.names
            spent += cost.price_bytes
            left -= cost.noise
    return chosen


def noise_of(proto: Any, other: Any, samples: Sequence[Arrays]) -> float:
    """Error power of `other`'s outputs relative to the power of `proto`'s, of the worst output, over the judging samples."""
    import numpy as np

    names = [value.name for value in proto.graph.output]
    sessions = [protos.session(one) for one in (proto, other)]
    rows = [[session.run(names, sample) for session in sessions] for sample in samples[:JUDGES]]
    worst = 0.0
    for place in range(len(names)):
        pairs = [(right[place].astype(np.float64), got[place].astype(np.float64)) for right, got in rows]
        worst = max(worst, sum(float(((a - b) ** 2).sum()) for a, b in pairs) / max(sum(float((a**2).sum()) for a, _ in pairs), 1e-30))
    return worst


def _grids(quantized: Any) -> dict[str, Affine]:
    """8-bit grids by activation, as the QDQ form stores them."""
    constants = protos.constants(quantized)
    found = {}
    for node in quantized.graph.node:
        if node.op_type == "QuantizeLinear" and constants[node.input[2]].dtype == "uint8":
            name = node.output[0].removesuffix("/stored")
            found[name] = Affine(float(constants[node.input[1]]), int(constants[node.input[2]]), 0, 255)
    return found


def _others(proto: Any) -> list[str]:
    """Values that are no float activations: indices, shapes, conditions."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    return [name for node in proto.graph.node for name in node.output if name and name not in stored]


def _groups(proto: Any) -> dict[str, frozenset[str]]:
    """By activation that is no mover's output: it, and what movers make of it."""
    root: dict[str, str] = {value.name: value.name for value in proto.graph.input}
    for node in proto.graph.node:
        for name in node.output:
            root[name] = root.get(node.input[0], name) if node.op_type in MOVERS and node.input else name
    return {name: frozenset(n for n, r in root.items() if r == name) for name in set(root.values())}


def _noise(proto: Any, name: str, grid: Affine, values: Sequence[Mapping[str, Array]]) -> float:
    import numpy as np

    nodes, outputs = proto.graph.node, [value.name for value in proto.graph.output]
    start = next((index + 1 for index, node in enumerate(nodes) if name in node.output), 0)
    made = {n for node in nodes[start:] for n in node.output}
    wanted = [output for output in outputs if output in made]
    read = {n for node in nodes[start:] for n in node.input} & set(values[0]) - made
    error, power = np.zeros(len(outputs)), np.zeros(len(outputs))
    runner = protos.session(protos.part(proto, start, len(nodes), {n: values[0][n] for n in sorted(read)}, wanted)) if wanted else None
    for sample in values:
        moved = grid.round(sample[name]).astype(np.float32)
        found = dict(zip(wanted, runner.run(wanted, {n: moved if n == name else sample[n] for n in read}), strict=True)) if runner else {}
        found |= {name: moved} if name in outputs else {}
        for place, output in enumerate(outputs):
            power[place] += float((sample[output].astype(np.float64) ** 2).sum())
            error[place] += float(((found.get(output, sample[output]).astype(np.float64) - sample[output]) ** 2).sum())
    worst = float((error / np.maximum(power, 1e-30)).max())
    return worst if worst < 1.0 else 1.0  # NaN too: a logarithm of what was rounded to zero
