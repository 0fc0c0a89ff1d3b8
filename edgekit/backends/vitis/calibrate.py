"""From a float network and samples to positions, weights and biases: layer after layer, each rounded for what the quantized ones before give."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from edgekit.backends.vitis import equalize, heads, joins, rounding, search, twins
from edgekit.backends.vitis import positions as ranges
from edgekit.backends.vitis.net import LINEAR, Net, Unit, without_tails
from edgekit.backends.vitis.observe import Seen, float_unit, observe, quantized_tensors
from edgekit.backends.vitis.qdq import Stored, single
from edgekit.qdq import layers
from edgekit.qdq.layers import OnnxLayer
from edgekit.quantize.moments import Layer
from edgekit.tensors import Array, Arrays
from edgekit.virtual.dpu import edges, reader

TAKEN_BACK_DB = 2.0
"""How far below the wanted SQNR the noise of activations alone may be before the network's head is left in float."""

Values = dict[str, list[Array]]
Group = Callable[[Net], tuple[Unit, ...]]


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """Everything that a QDQ file needs: the network (with scaled channels), positions of its tensors, constants by (unit, input).

    `costs` is the noise that each tensor's rounding alone brings to the outputs, as a share of their power, where it was measured.
    """

    net: Net
    units: tuple[Unit, ...]
    positions: dict[str, int]
    params: dict[tuple[str, int], Stored]
    notices: tuple[str, ...] = ()
    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What to try for: `sqnr_db` at the outputs, for which a share `float_macs` of the MACs may run in float on the CPU before the DPU."""

    sqnr_db: float = 0.0
    float_macs: float = 0.0


def calibrate(
    net: Net,
    group: Group,
    samples: Sequence[Arrays],
    method: str,
    shift_rounding: str,
    progress: Callable[[int, int, str], None],
    wanted: Wanted | None = None,
) -> Calibrated:
    """Channels scaled, positions by squared error, then weights and biases in the order of execution on the quantized network's values.

    `group` puts a network in units. With method `nearest` the weights of the network as it is are rounded to nearest.
    """
    notices, costs = tuple[str, ...](), dict[str, float]()
    seen = observe(net, group(net), samples)
    group, units = _keeping_apart(group, net, seen)
    if method == "nearest":
        positions = ranges.choose(net, units, seen, {})
    else:
        progress(0, len(units), "choosing positions")
        even, notices, costs = _evened(net, group, seen, samples, wanted or Wanted())
        positions, costs = _refined(even, samples, costs)
        net, units = even.net, even.units
    run = _Run(net, positions, samples, {layer.output: layer for layer in layers.find(net.proto)}, method, shift_rounding)
    last = {name: index for index, unit in enumerate(units) for name in net.unit_data(unit)}
    for index, unit in enumerate(units):
        progress(index, len(units), f"rounding {unit.output}")
        run.unit(unit)
        run.forget({name for name in run.floats if last.get(name, -1) <= index})
    return Calibrated(net, units, positions, run.params, notices, costs)


def _keeping_apart(group: Group, net: Net, seen: dict[str, Seen]) -> tuple[Group, tuple[Unit, ...]]:
    """`group` with joins of unequal ranges left to the CPU, and the network in units by it. What is then not quantized leaves `seen`."""
    apart = {unit.output: unit for unit in joins.keep_apart(net, group(net), seen) if not unit.on_dpu}

    def grouped(one: Net) -> tuple[Unit, ...]:
        return without_tails(one, [_refused(unit, apart.get(unit.output)) for unit in group(one)])

    units = grouped(net)
    for name in set(seen) - set(quantized_tensors(net, units)):
        del seen[name]
    return grouped, units


def _refused(unit: Unit, by: Unit | None) -> Unit:
    return dataclasses.replace(unit, reason=by.reason, suggestion=by.suggestion) if by else unit


@dataclasses.dataclass(frozen=True)
class _Even:
    """A network with scaled channels, in units, what its tensors reach, legal positions, and those of tensors that saturate at a bound."""

    net: Net
    units: tuple[Unit, ...]
    seen: Mapping[str, Seen]
    positions: dict[str, int]
    level: dict[str, int]


def _evened(
    net: Net, group: Group, seen: dict[str, Seen], samples: Sequence[Arrays], wanted: Wanted
) -> tuple[_Even, tuple[str, ...], dict[str, float]]:
    """The network with scaled channels, its head in float where int8 is too coarse for it, layers doubled where that lets HardSwish be scaled
    and is worth it; what to say about that, and the noise of tensors that this left as they were.
    """
    even = _equalized(net, group, seen)
    costs = search.costs(even.net, even.units, samples, even.positions)
    head = heads.choose(net, group(net), costs, wanted.float_macs) if _poor(costs, wanted) else frozenset[str]()
    if head:
        group = _with_head(group, head)
        seen = {name: seen[name] for name in quantized_tensors(net, group(net))}
        even = _equalized(net, group, seen)
        costs = {name: cost for name, cost in costs.items() if name in seen}
    chosen = twins.worthwhile(net, twins.find(net, group(net)), costs)
    if not chosen:
        return even, (), costs
    scaled = {name for one in chosen for name in (one.source, one.product.output[0])}
    copies = {twins.copy_of(one.source): seen[one.source] for one in chosen}
    kept = {name: cost for name, cost in costs.items() if name not in scaled}
    return _equalized(twins.double(net, chosen), group, seen | copies), _doubled(net, chosen), kept


def _poor(costs: Mapping[str, float], wanted: Wanted) -> bool:
    """Whether activations alone cost so much that what is wanted is out of reach: rounding by data takes back a part of the noise counted here."""
    return wanted.float_macs > 0 and search.decibels(sum(costs.values())) < wanted.sqnr_db - TAKEN_BACK_DB


def _with_head(group: Group, head: frozenset[str]) -> Group:
    return lambda net: without_tails(net, heads.left(group(net), head))


def _equalized(net: Net, group: Group, seen: dict[str, Seen]) -> _Even:
    """The network with scaled channels; bounds that the DPU's shift ranges move from their level are left as they were."""
    held: set[str] = set()
    while True:
        even = equalize.equalize(net, group(net), seen, held)
        units = group(even.net)
        level = dict.fromkeys(even.saturated, equalize.LEVEL_POSITION)
        positions = ranges.choose(even.net, units, even.seen, level)
        moved = {name for name in level if positions[name] != equalize.LEVEL_POSITION}
        if not moved:
            return _Even(even.net, units, even.seen, positions, level)
        held |= moved


def _refined(even: _Even, samples: Sequence[Arrays], known: Mapping[str, float]) -> tuple[dict[str, int], dict[str, float]]:
    """Legal positions near those of least noise at the network's outputs (as they were where that would move a bound), and the noise of each."""
    wanted, costs = search.refine(even.net, even.units, samples, even.positions, even.level, known)
    found = ranges.choose(even.net, even.units, even.seen, wanted)
    return (even.positions if any(found[name] != position for name, position in even.level.items()) else found), costs


def _doubled(net: Net, chosen: Sequence[twins.Gated]) -> tuple[str, ...]:
    more = sum(one.macs for one in chosen) / max(sum(twins.macs(net, node) for node in net.nodes), 1)
    names = ", ".join(one.source for one in chosen[:4]) + (", ..." if len(chosen) > 4 else "")
    return (f"{len(chosen)} layer(s) before HardSwish are computed twice ({100 * more:.1f} % more MACs), so that channels can be scaled: {names}",)


class _Run:
    """All samples at one place of the network: its values in float, and in the quantized network (int8 where a tensor is quantized)."""

    def __init__(
        self, net: Net, positions: dict[str, int], samples: Sequence[Arrays], linear: Mapping[str, OnnxLayer], method: str, shift_rounding: str
    ) -> None:
        self.params: dict[tuple[str, int], Stored] = {}
        self.floats: Values = {name: [sample[name] for sample in samples] for name in net.inputs}
        self._net, self._positions, self._linear, self._method, self._rounding = net, positions, linear, method, shift_rounding
        self._stored: Values = {name: self._quantize(name, values) for name, values in self.floats.items()}

    def unit(self, unit: Unit) -> None:
        """Settle a unit's constants and compute what it leaves."""
        if unit.on_dpu:
            self.params |= self._parameters(unit)
        step, given = float_unit(self._net, unit), self._net.unit_data(unit)
        made = self._integer(unit) if unit.on_dpu else self._on_cpu(step, unit)
        real = [step(dict(zip(given, row, strict=True))) for row in zip(*(self.floats[name] for name in given), strict=True)]
        for name in unit.nodes[-1].output:
            self.floats[name], self._stored[name] = [one[name] for one in real], made[name]

    def forget(self, names: set[str]) -> None:
        """Drop tensors that nothing reads any more."""
        for name in names:
            del self.floats[name], self._stored[name]

    def _quantize(self, name: str, values: list[Array]) -> list[Array]:
        if name not in self._positions:
            return values
        quantizer = edges.quantizer(self._positions[name])
        return [quantizer([value])[0] for value in values]

    def _real(self, name: str) -> list[Array]:
        """A tensor of the quantized network in real values."""
        if name not in self._positions:
            return self._stored[name]
        dequantizer = edges.dequantizer(self._positions[name])
        return [dequantizer([value])[0] for value in self._stored[name]]

    def _integer(self, unit: Unit) -> Values:
        program = reader.read(single(self._net, unit, self._positions, self.params, {reader.ROUNDING_KEY: self._rounding}))
        given, outputs = self._net.unit_data(unit), unit.nodes[-1].output
        columns = zip(*(self._stored[name] for name in given), strict=True)
        rows = [program.run({f"{name}/int8": value for name, value in zip(given, row, strict=True)}) for row in columns]
        return {name: [row[f"{name}/int8"] for row in rows] for name in outputs}

    def _on_cpu(self, step: Callable[[Mapping[str, Array]], dict[str, Array]], unit: Unit) -> Values:
        given = self._net.unit_data(unit)
        rows = [step(dict(zip(given, row, strict=True))) for row in zip(*(self._real(name) for name in given), strict=True)]
        return {name: self._quantize(name, [row[name] for row in rows]) for name in unit.nodes[-1].output}

    def _parameters(self, unit: Unit) -> dict[tuple[str, int], Stored]:
        """The int8 constants of a unit, by (unit, input)."""
        import numpy as np

        if unit.head.op_type in LINEAR:
            return self._weights(unit)
        if unit.head.op_type not in ("Add", "Sub", "Mul"):
            return {}
        made = {}
        for index, name in enumerate(unit.head.input):
            if name in self._net.constants:
                values = self._net.constants[name].astype(np.float64)
                limits = ranges.constant_range(unit.head.op_type, self._positions[unit.head.input[1 - index]], self._positions[unit.output])
                position = ranges.clamp(ranges.best(values, float(np.abs(values).max(initial=0))), limits)
                made[unit.output, index] = _stored(values, position)
        return made

    def _weights(self, unit: Unit) -> dict[tuple[str, int], Stored]:
        import numpy as np

        head, constants = unit.head, self._net.constants
        stored, bias = constants[head.input[1]], constants[head.input[2]] if len(head.input) > 2 and head.input[2] else None
        layer = self._linear.get(head.output[0])
        data = layer is not None and layer.window is not None and self._method != "nearest"
        matrix = layer.to_matrix(stored) if layer is not None else stored.reshape(1, -1)
        values = np.zeros(len(matrix)) if bias is None else bias.astype(np.float64).ravel()
        allowed = self._limits(unit, ranges.covering(float(np.abs(matrix).max(initial=0))))
        if layer is None or not data:
            position = min(allowed, key=lambda p: (ranges.error(matrix, p), p))
            at = ranges.clamp(ranges.covering(float(np.abs(values).max(initial=0))), allowed[position])
            made = _stored(stored, position)
            return {(unit.output, 1): made} | ({} if bias is None else {(unit.output, 2): _stored(values, at)})
        halves = rounding.sums(layer, self._real(layer.input), self.floats[layer.input])
        best = rounding.together(Layer(matrix, values, layer.groups), halves, allowed)
        weight = layer.from_matrix(best.weight.astype(np.int8), stored.shape)
        return {(unit.output, 1): Stored(weight, best.weight_position), (unit.output, 2): Stored(best.bias.astype(np.int8), best.bias_position)}

    def _limits(self, unit: Unit, base: int) -> dict[int, tuple[int, int]]:
        """Weight positions that the shift to the output allows, each with the lowest and highest position of the bias."""
        at, to = self._positions[unit.head.input[0]], self._positions[unit.output]
        low, high = ranges.SHIFT_CUT[0] + to - at, ranges.SHIFT_CUT[1] + to - at
        leaky = any(node.op_type == "LeakyRelu" for node in unit.nodes)
        tried = dict.fromkeys(ranges.clamp(base + finer, (low, high)) for finer in range(rounding.FINER + 1))
        return {position: ranges.bias_range(at + position - to, at + position, leaky) for position in tried}


def _stored(values: Array, position: int) -> Stored:
    """Real values as int8 of a position."""
    import numpy as np

    return Stored(np.clip(np.rint(values.astype(np.float64) * 2.0**position), -128, 127).astype(np.int8), position)
