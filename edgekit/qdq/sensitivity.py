"""What an activation costs as integers: the error of the outputs when it alone is rounded to them, everything else as it is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

from edgekit.progress import Progress, silent
from edgekit.qdq import layers, protos, stream, write
from edgekit.qdq.operators import MOVERS
from edgekit.quantize.grid import Affine
from edgekit.quantize.sampling import spread
from edgekit.tensors import Array, Arrays

JUDGES = 4
"""Samples that judge, spread over all: the error of one rounded activation is a mean over all that it holds already."""

LOUD = {8: 0.002, 16: 0.0002}
"""Noise, by bits, from which an activation is not worth an integer: it alone would hold the outputs below 27 or 37 dB."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one activation as integers: `noise` is its part of the outputs' error power, relative to the outputs' own (worst output).

    `names` are it and what only moves it, which share its grid. In 16 bits its `elements` take a byte more each, and the layers that make
    and read it compute in 16 bits, convolutions among them with `weights` values by name.
    """

    noise: float
    elements: int
    weights: Mapping[str, int]
    names: frozenset[str]

    def price_bytes(self, wide: Set[str] = frozenset()) -> float:
        """About what 16 bits add to a context binary, from those of QNN SDK 2.51 for a network of 50 convolutions: for each operator a
        little, for values that are tiled, and a fifth of the weights of convolutions that compute in 16 bits (dense layers: nothing),
        but for those in `wide`, which do so already.
        """
        return 4096 + 0.025 * self.elements + 0.19 * sum(size for name, size in self.weights.items() if name not in wide)


def measure(proto: Any, quantized: Any, samples: Sequence[Arrays], progress: Progress = silent) -> dict[str, Cost]:
    """Costs by activation of a float graph on the grids of `quantized`, its QDQ form.

    Errors of different activations add up, as they are independent: the noise of a set is close to the sum.
    """
    grids, judges = write.grids(quantized), _judges(samples)
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
            beside = {layer.weight: sizes[layer.weight] for layer in found if layer.window != () and groups[name] & {layer.input, layer.output}}
            costs[name] = Cost(noise, int(values[0][name].size), beside, groups[name])
    return costs


def loud(costs: Mapping[str, Cost], bits: int) -> frozenset[str]:
    """The activations of which integers of `bits` alone would spoil the outputs, and what only moves them."""
    return frozenset[str]().union(*(cost.names for cost in costs.values() if cost.noise > LOUD[bits]))


def worth(costs: Mapping[str, Cost], least: float) -> tuple[frozenset[str], ...]:
    """The activations to store in 16 bits, each with what only moves it: most noise a byte first, given those before it, until the noise of
    the others is at most `least`.
    """
    open_, left, order, wide = list(costs.values()), sum(cost.noise for cost in costs.values()), list[frozenset[str]](), set[str]()
    while open_ and left > least:
        best = max(open_, key=lambda cost: (cost.noise / cost.price_bytes(wide), sorted(cost.names)))
        open_.remove(best)
        order.append(best.names)
        wide |= set(best.weights)
        left -= best.noise
    return tuple(order)


def noise_of(proto: Any, other: Any, samples: Sequence[Arrays]) -> float:
    """Error power of `other`'s outputs relative to the power of `proto`'s, of the worst output, over samples; at most 1."""
    names = [value.name for value in proto.graph.output]
    sessions = [protos.session(one) for one in (proto, other)]
    right, given = ([dict(zip(names, session.run(names, sample), strict=True)) for sample in samples] for session in sessions)
    return _worst(names, right, given)


def _judges(samples: Sequence[Arrays]) -> list[Arrays]:
    return [samples[index] for index in spread(len(samples), min(JUDGES, len(samples)))]


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
    nodes, outputs = proto.graph.node, [value.name for value in proto.graph.output]
    start = next((index + 1 for index, node in enumerate(nodes) if name in node.output), 0)
    made = {n for node in nodes[start:] for n in node.output}
    wanted = [output for output in outputs if output in made]
    read = {n for node in nodes[start:] for n in node.input} & set(values[0]) - made
    runner = protos.session(protos.part(proto, start, len(nodes), {n: values[0][n] for n in sorted(read)}, wanted)) if wanted else None

    def run(sample: Mapping[str, Array], moved: Array) -> dict[str, Array]:
        found = dict(zip(wanted, runner.run(wanted, {n: moved if n == name else sample[n] for n in read}), strict=True)) if runner else {}
        return {output: sample[output] for output in outputs} | found | ({name: moved} if name in outputs else {})

    return _worst(outputs, values, [run(sample, grid.round(sample[name]).astype("float32")) for sample in values])


def _worst(outputs: Sequence[str], right: Sequence[Mapping[str, Array]], given: Sequence[Mapping[str, Array]]) -> float:
    """Error power of the worst output relative to its own power, at most 1; NaN too: a logarithm of what was rounded to zero."""
    import numpy as np

    worst = 0.0
    for output in outputs:
        pairs = [(a[output].astype(np.float64), b[output].astype(np.float64)) for a, b in zip(right, given, strict=True)]
        error, power = sum(float(((a - b) ** 2).sum()) for a, b in pairs), sum(float((a**2).sum()) for a, _ in pairs)
        worst = max(worst, error / max(power, 1e-30) if error == error else 1.0)
    return min(worst, 1.0)
