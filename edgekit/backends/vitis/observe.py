"""The float network on the calibration samples, unit by unit: what its tensors reach, channel by channel."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from edgekit.backends.vitis.net import Net, Unit
from edgekit.tensors import Array, Arrays
from edgekit.virtual.dpu import edges

KEPT_VALUES = 3000
"""Values of a tensor kept a sample, to choose its position by."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """A tensor on the calibration samples: `largest` magnitude and mean square (`energy`) of each channel, `values` [n, channels] of some
    places. Tensors of fewer than two dimensions have one channel.
    """

    largest: Array
    energy: Array
    values: Array

    def scaled(self, factors: Array, level: float | None = None) -> Seen:
        """The same tensor with its channels times `factors`, and at most `level`."""
        import numpy as np

        bound = np.inf if level is None else level
        return Seen(np.minimum(self.largest * factors, bound), self.energy * factors**2, np.minimum(self.values * factors, bound))


def quantized_tensors(net: Net, units: Sequence[Unit]) -> list[str]:
    """Tensors that the accelerator reads or leaves, in order."""
    names = [name for unit in units if unit.on_dpu for name in (*net.unit_data(unit), *unit.nodes[-1].output)]
    return list(dict.fromkeys(names))


def observe(net: Net, units: Sequence[Unit], samples: Sequence[Arrays]) -> dict[str, Seen]:
    """Every tensor to quantize, in the float network."""
    import numpy as np

    wanted, rng, run = quantized_tensors(net, units), np.random.RandomState(0), float_runner(net, units)
    kept: dict[str, list[Array]] = {name: [] for name in wanted}
    largest: dict[str, Array] = {}
    energy: dict[str, Array] = {}
    for sample in samples:
        held: dict[str, Array] = {name: sample[name] for name in net.inputs}
        for outputs in itertools.chain([dict(held)], run(held)):
            for name in kept.keys() & outputs.keys():
                rows = by_channel(outputs[name])
                reach, square = np.abs(rows).max(axis=0, initial=0), (rows.astype(np.float64) ** 2).mean(axis=0)
                largest[name] = np.maximum(largest.get(name, 0.0), reach)
                energy[name] = energy.get(name, 0.0) + square / len(samples)
                most = max(4, KEPT_VALUES // rows.shape[1])
                kept[name].append(rows if len(rows) <= most else rows[rng.randint(0, len(rows), most)])
    return {name: Seen(largest[name], energy[name], np.concatenate(kept[name])) for name in wanted}


def by_channel(values: Array) -> Array:
    """[places, channels] of a tensor whose second axis holds the channels."""
    import numpy as np

    if values.ndim < 2:
        return values.reshape(-1, 1)
    return np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])


def float_runner(net: Net, units: Sequence[Unit]) -> Callable[[dict[str, Array]], Iterator[dict[str, Array]]]:
    """A function that runs the float network unit by unit over `held`, and gives each unit's outputs."""
    steps = [(unit, float_unit(net, unit)) for unit in units]
    last = {name: index for index, (unit, _) in enumerate(steps) for name in net.unit_data(unit)}

    def run(held: dict[str, Array]) -> Iterator[dict[str, Array]]:
        for index, (unit, step) in enumerate(steps):
            made = step(held)
            held |= made
            yield made
            for name in (*net.unit_data(unit), *made):
                if last.get(name, -1) <= index and name not in net.outputs:
                    held.pop(name, None)

    return run


def float_unit(net: Net, unit: Unit) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """One unit in float: held tensors -> its outputs."""
    given = net.unit_data(unit)
    steps = []
    for node in unit.nodes:
        data, outputs = list(dict.fromkeys(net.data(node))), [name for name in node.output if name]
        steps.append((data, outputs, edges.float_operator(net.proto, node, data, outputs, net.constants)))

    def run(held: Mapping[str, Array]) -> dict[str, Array]:
        local = {name: held[name] for name in given}
        for data, outputs, step in steps:
            local |= dict(zip(outputs, step([local[name] for name in data]), strict=True))
        return {name: local[name] for name in unit.nodes[-1].output}

    return run
