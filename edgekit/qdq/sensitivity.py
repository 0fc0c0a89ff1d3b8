"""What an activation or a weight costs as integers: the error of the outputs when it alone is rounded to them, everything else as it is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

from edgekit.progress import Progress, silent
from edgekit.qdq import layers, protos, stream, write
from edgekit.qdq.operators import MOVERS
from edgekit.quantize import grid
from edgekit.quantize.sampling import spread
from edgekit.tensors import Array, Arrays

JUDGES = 4
"""Samples that judge, spread over all: the error of one rounded activation is a mean over all that it holds already."""

PAGE_BYTES = 4096
"""Context binaries grow by pages."""

LOUD = {8: 0.002, 16: 0.0002}
"""Noise, by bits, from which an activation is not worth an integer: it alone would hold the outputs below 27 or 37 dB."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one activation as integers: `noise` is its part of the outputs' error power, relative to the outputs' own (worst output).

    `names` are it and what only moves it, which share its grid. In 16 bits its `elements` take more room, and the layers that make and read
    it compute in 16 bits, convolutions among them for some bytes by the name of their weight, `layers`. A `fine` cost is that of a
    weight, whose 16 bits need a layer that computes in 16 already.
    """

    noise: float
    elements: int
    layers: Mapping[str, int]
    names: frozenset[str]
    fine: bool = False

    def price_bytes(self, wide: Set[str] = frozenset()) -> float:
        """About what 16 bits add to a context binary, but for layers in `wide`, which compute in them already. QNN SDK 2.51: a page for the
        operator, and tables for values that are tiled.
        """
        if self.fine:
            return float(sum(self.layers.values()))
        return PAGE_BYTES + 0.025 * self.elements + sum(size for name, size in self.layers.items() if name not in wide)


def measure(
    proto: Any, quantized: Any, samples: Sequence[Arrays], progress: Progress = silent, prices: Mapping[str, int] | None = None
) -> dict[str, Cost]:
    """Costs by activation of a float graph on the grids of `quantized`, its QDQ form.

    Errors of different activations add up, as they are independent: the noise of a set is close to the sum. `prices` are bytes that layers
    take more in 16 bits, by weight, where they are known.
    """
    grids, values = write.grids(quantized), _values(proto, samples)
    names = [name for name in stream.activations(proto) if name in grids]
    groups, found = _groups(proto), [layer for layer in layers.find(proto) if layer.window != ()]  # for dense ones 16 bits take nothing
    behind = {node.input[0]: node.output[0] for node in proto.graph.node if node.op_type in ("Relu", "Clip") and node.input[0] not in grids}
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in proto.graph.initializer}
    costs: dict[str, Cost] = {}
    for number, name in enumerate(names):
        progress(number, len(names), "measure sensitivity")
        if name in groups:  # not what a mover gives
            noise = _noise(proto, name, [grids[name].round(sample[name]).astype("float32") for sample in values], values)
            beside = [layer.weight for layer in found if groups[name] & {layer.input, behind.get(layer.output, layer.output)}]
            taken = {weight: (prices or {}).get(weight, layer_bytes(sizes[weight])) for weight in beside}
            costs[name] = Cost(noise, int(values[0][name].size), taken, groups[name])
    return costs


def layer_bytes(weights: int) -> int:
    """About what a convolution without groups takes more in 16 bits (QNN SDK 2.51, EfficientNet-Lite0: one to four pages)."""
    return round(PAGE_BYTES / 2 + 0.02 * weights)


def measure_weights(proto: Any, samples: Sequence[Arrays], prices: Mapping[str, int], progress: Progress = silent) -> dict[str, Cost]:
    """Costs of the weights in `prices` (bytes that 16 bits add, by weight), rounded to nearest on 8, with what the bias takes back taken back.

    Rounding by data leaves about as much of a layer that is rounded alone (EfficientNet-Lite0: 0.95 times, over all its layers).
    """
    values, costs = _values(proto, samples), dict[str, Cost]()
    found = [layer for layer in layers.find(proto) if layer.weight in prices]
    for number, layer in enumerate(found):
        progress(number, len(found), "measure weights")
        moved = _rounded_outputs(proto, layer, values)
        noise, name = _noise(proto, layer.output, moved, values), layer.weight
        costs[name] = Cost(noise, 0, {name: prices[name]}, frozenset((name,)), fine=True)
    return costs


def _rounded_outputs(proto: Any, layer: layers.OnnxLayer, values: Sequence[Arrays]) -> list[Array]:
    """What a layer gives with its weight rounded to nearest and the mean error of each channel taken back."""
    import numpy as np

    weight = protos.constants_of(proto, layer.weight)[layer.weight]
    matrix = layer.to_matrix(weight)
    scales = grid.weight_scales(matrix)
    rounded = layer.from_matrix((grid.nearest(matrix, scales) * scales).astype(np.float32), weight.shape)
    part = protos.part(proto, layer.node, layer.node + 1, {layer.input: values[0][layer.input]}, [layer.output])
    protos.set_constant(part, layer.weight, rounded)
    run, channel = protos.session(part), 1 if layer.kind in ("Conv", "ConvTranspose") else -1
    made = [run.run([layer.output], {layer.input: sample[layer.input]})[0] for sample in values]
    axes = tuple(axis for axis in range(made[0].ndim) if axis != channel % made[0].ndim)
    error = np.mean([(one - sample[layer.output]).mean(axis=axes, keepdims=True) for one, sample in zip(made, values, strict=True)], axis=0)
    return [(one - error).astype(np.float32) for one in made]


def loud(costs: Mapping[str, Cost], bits: int) -> frozenset[str]:
    """The activations of which integers of `bits` alone would spoil the outputs, and what only moves them."""
    return frozenset[str]().union(*(cost.names for cost in costs.values() if cost.noise > LOUD[bits]))


def worth(costs: Mapping[str, Cost], least: float) -> tuple[frozenset[str], ...]:
    """The activations and weights to store in 16 bits, each with what only moves it: most noise a byte first, given those before it, until the
    noise of the others is at most `least`. A weight comes behind an activation for which its layer computes in 16 bits.
    """
    open_, left, order, wide = list(costs.values()), sum(cost.noise for cost in costs.values()), list[frozenset[str]](), set[str]()
    while left > least and (able := [cost for cost in open_ if not cost.fine or cost.names <= wide]):
        best = max(able, key=lambda cost: (cost.noise / max(cost.price_bytes(wide), 1.0), sorted(cost.names)))
        open_.remove(best)
        order.append(best.names)
        wide |= set() if best.fine else set(best.layers)
        left -= best.noise
    return tuple(order)


def noise_of(proto: Any, other: Any, samples: Sequence[Arrays]) -> float:
    """Error power of `other`'s outputs relative to the power of `proto`'s, of the worst output, over samples; at most 1."""
    return _worst([value.name for value in proto.graph.output], _outputs(proto, samples), _outputs(other, samples))


def noises(proto: Any, other: Any, samples: Sequence[Arrays]) -> list[float]:
    """What each sample adds to that: error power of its worst output, relative to the mean power of that output over samples; at most 1."""
    import numpy as np

    right, given = (_outputs(one, samples) for one in (proto, other))
    worst = np.zeros(len(samples))
    for name in (value.name for value in proto.graph.output):
        wanted, found = (np.stack([sample[name].astype(np.float64).reshape(-1) for sample in one]) for one in (right, given))
        relative = ((found - wanted) ** 2).sum(axis=1) / max((wanted**2).sum(axis=1).mean(), 1e-30)
        worst = np.maximum(worst, np.nan_to_num(relative, nan=1.0))
    return [min(float(noise), 1.0) for noise in worst]


def _outputs(proto: Any, samples: Sequence[Arrays]) -> list[dict[str, Array]]:
    names, session = [value.name for value in proto.graph.output], protos.session(proto)
    return [dict(zip(names, session.run(names, sample), strict=True)) for sample in samples]


def _judges(samples: Sequence[Arrays]) -> list[Arrays]:
    return [samples[index] for index in spread(len(samples), min(JUDGES, len(samples)))]


def _values(proto: Any, samples: Sequence[Arrays]) -> list[dict[str, Array]]:
    """All values of the graph on the samples that judge."""
    run = stream.taps(proto, list(dict.fromkeys([*stream.activations(proto), *_others(proto)])))
    return [run(sample) for sample in _judges(samples)]


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


def _noise(proto: Any, name: str, moved: Sequence[Array], values: Sequence[Arrays]) -> float:
    """Error of the outputs where the activation is what is in `moved`, for each of `values`."""
    nodes, outputs = proto.graph.node, [value.name for value in proto.graph.output]
    start = next((index + 1 for index, node in enumerate(nodes) if name in node.output), 0)
    made = {n for node in nodes[start:] for n in node.output}
    wanted = [output for output in outputs if output in made]
    read = {n for node in nodes[start:] for n in node.input} & set(values[0]) - made
    runner = protos.session(protos.part(proto, start, len(nodes), {n: values[0][n] for n in sorted(read)}, wanted)) if wanted else None

    def run(sample: Mapping[str, Array], now: Array) -> dict[str, Array]:
        found = dict(zip(wanted, runner.run(wanted, {n: now if n == name else sample[n] for n in read}), strict=True)) if runner else {}
        return {output: sample[output] for output in outputs} | found | ({name: now} if name in outputs else {})

    return _worst(outputs, values, [run(sample, now) for sample, now in zip(values, moved, strict=True)])


def _worst(outputs: Sequence[str], right: Sequence[Mapping[str, Array]], given: Sequence[Mapping[str, Array]]) -> float:
    """Error power of the worst output relative to its own power, at most 1; NaN too: a logarithm of what was rounded to zero."""
    import numpy as np

    worst = 0.0
    for output in outputs:
        pairs = [(a[output].astype(np.float64), b[output].astype(np.float64)) for a, b in zip(right, given, strict=True)]
        error, power = sum(float(((a - b) ** 2).sum()) for a, b in pairs), sum(float((a**2).sum()) for a, _ in pairs)
        worst = max(worst, error / max(power, 1e-30) if error == error else 1.0)
    return min(worst, 1.0)
