"""From a float network and samples to positions, weights and biases: layer after layer, each rounded for what the quantized ones before give."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgekit.backends.vitis import positions as ranges
from edgekit.backends.vitis.net import LINEAR, Net, Unit, attribute
from edgekit.backends.vitis.positions import Seen
from edgekit.backends.vitis.qdq import Stored, single
from edgekit.quantize import layer as layers
from edgekit.quantize import moments as statistics
from edgekit.quantize import rounding as weights
from edgekit.quantize.moments import Layer, Moments
from edgekit.tensors import Array, Arrays
from edgekit.virtual.dpu import edges, kernels, reader
from edgekit.virtual.dpu.operands import window_of

KEPT_VALUES = 3000
"""Values of a tensor kept a sample, to choose its position by."""

POSITIONS = 8000
"""Input positions of a layer taken over all samples, to round it by."""

WEIGHT_CANDIDATES = 3

Values = dict[str, list[Array]]


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """Everything that a QDQ file needs."""

    positions: dict[str, int]
    params: dict[tuple[str, int], Stored]


def quantized_tensors(net: Net, units: Sequence[Unit]) -> list[str]:
    """Tensors that the accelerator reads or leaves, in order."""
    names = [name for unit in units if unit.on_dpu for name in (*net.unit_data(unit), *unit.nodes[-1].output)]
    return list(dict.fromkeys(names))


def observe(net: Net, units: Sequence[Unit], samples: Sequence[Arrays]) -> dict[str, Seen]:
    """Largest magnitudes and samples of values of every tensor to quantize, in the float network."""
    import numpy as np

    wanted, rng = set(quantized_tensors(net, units)), np.random.RandomState(0)
    run = float_runner(net, units)
    kept: dict[str, list[Array]] = {name: [] for name in wanted}
    largest = dict.fromkeys(wanted, 0.0)
    for sample in samples:
        held: dict[str, Array] = {name: sample[name] for name in net.inputs}
        for outputs in itertools.chain([dict(held)], run(held)):
            for name in wanted & outputs.keys():
                flat = outputs[name].ravel()
                largest[name] = max(largest[name], float(np.abs(flat).max(initial=0)))
                kept[name].append(flat if flat.size <= KEPT_VALUES else flat[rng.randint(0, flat.size, KEPT_VALUES)])
    return {name: Seen(largest[name], np.concatenate(kept[name])) for name in quantized_tensors(net, units)}


def float_runner(net: Net, units: Sequence[Unit]) -> Callable[[dict[str, Array]], Any]:
    """A function that runs the float network unit by unit over `held`, and gives each unit's outputs."""
    steps = [(unit, float_unit(net, unit)) for unit in units]
    last = {name: index for index, (unit, _) in enumerate(steps) for name in net.unit_data(unit)}

    def run(held: dict[str, Array]) -> Any:
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


def calibrate(
    net: Net, units: Sequence[Unit], samples: Sequence[Arrays], method: str, rounding: str, progress: Callable[[int, int, str], None]
) -> Calibrated:
    """Positions by squared error, then weights and biases in the order of execution, on the quantized network's own activations."""
    found = ranges.choose(net, units, observe(net, units, samples))
    params: dict[tuple[str, int], Stored] = {}
    floats: Values = {name: [sample[name] for sample in samples] for name in net.inputs}
    stored: Values = {name: [edges.quantizer(found[name])([v])[0] for v in floats[name]] for name in net.inputs if name in found}
    last = {name: index for index, unit in enumerate(units) for name in net.unit_data(unit)}
    for index, unit in enumerate(units):
        progress(index, len(units), f"rounding {unit.output}")
        if unit.on_dpu:
            params |= parameters(net, unit, found, stored, floats, method)
        step, real = float_unit(net, unit), []
        for number in range(len(samples)):
            real.append(step({name: floats[name][number] for name in net.unit_data(unit)}))
        made = _quantized(net, unit, found, params, stored, floats, rounding, len(samples))
        for name in unit.nodes[-1].output:
            floats[name] = [one[name] for one in real]
            if name in found:
                stored[name] = made[name]
        for name in list(floats):
            if last.get(name, -1) <= index:
                floats.pop(name), stored.pop(name, None)
    return Calibrated(found, params)


def _quantized(
    net: Net,
    unit: Unit,
    positions: Mapping[str, int],
    params: Mapping[tuple[str, int], Stored],
    stored: Values,
    floats: Values,
    rounding: str,
    count: int,
) -> Values:
    """What a unit leaves in the quantized network; on the CPU it computes in float from dequantized inputs."""
    given, outputs = net.unit_data(unit), list(unit.nodes[-1].output)
    if unit.on_dpu:
        program = reader.read(single(net, unit, positions, params, {reader.ROUNDING_KEY: rounding}))
        rows = [program.run({f"{name}/int8": stored[name][i] for name in given}) for i in range(count)]
        return {name: [row[f"{name}/int8"] for row in rows] for name in outputs}
    step = float_unit(net, unit)
    read = {name: [edges.dequantizer(positions[name])([v])[0] for v in stored[name]] if name in stored else floats[name] for name in given}
    made = [step({name: read[name][i] for name in given}) for i in range(count)]
    return {name: [edges.quantizer(positions[name])([one[name]])[0] for one in made] for name in outputs if name in positions}


def parameters(
    net: Net, unit: Unit, positions: dict[str, int], stored: Values, floats: Values, method: str
) -> dict[tuple[str, int], Stored]:
    """The int8 constants of a unit, by (unit, input)."""
    import numpy as np

    head = unit.head
    if head.op_type in LINEAR:
        return _linear(net, unit, positions, stored, floats, method)
    if head.op_type not in ("Add", "Sub", "Mul"):
        return {}
    made = {}
    for index, name in enumerate(head.input):
        if name in net.constants:
            values = net.constants[name].astype(np.float64)
            made[unit.output, index] = integers(values, ranges.best(Seen(float(np.abs(values).max(initial=0)), values.ravel())))
    return made


def integers(values: Array, position: int) -> Stored:
    """Real values as int8 of a position."""
    import numpy as np

    return Stored(np.clip(np.rint(values * 2.0**position), -128, 127).astype(np.int8), position)


def _linear(net: Net, unit: Unit, positions: dict[str, int], stored: Values, floats: Values, method: str) -> dict[tuple[str, int], Stored]:
    import numpy as np

    head, source, out = unit.head, unit.head.input[0], unit.output
    weight = net.constants[head.input[1]].astype(np.float64)
    given = net.constants[head.input[2]].astype(np.float64).ravel() if len(head.input) > 2 and head.input[2] else None
    layer = as_layer(head, weight, given)
    at, to = positions[source], positions[out]
    low, high = ranges.SHIFT_CUT[0] + to - at, ranges.SHIFT_CUT[1] + to - at
    seen = wanted = None
    if head.op_type != "ConvTranspose" and method != "nearest":
        scale = 2.0**-at
        seen = _halves(head, layer, weight.shape[2:], [v.astype(np.float32) * np.float32(scale) for v in stored[source]])
        wanted = _halves(head, layer, weight.shape[2:], floats[source], second=False)
    position = min(max(_weight_position(layer, seen), low), high)
    chosen = method if seen is not None else "nearest"
    made = layers.round_layer(layer, seen, wanted, method=chosen, scales=np.full(layer.weight.shape, 2.0**-position))
    params = {(out, 1): Stored(as_weight(head, made.integers, weight.shape).astype(np.int8), position)}
    if given is not None or np.abs(made.bias).max(initial=0) > 0:
        leaky = any(node.op_type == "LeakyRelu" for node in unit.nodes)
        lowest, highest = ranges.bias_range(at + position - to, at + position, leaky)
        bias = min(max(ranges.covering(float(np.abs(made.bias).max(initial=0))), lowest), highest)
        params[out, 2] = integers(made.bias, bias)
    return params


def _weight_position(layer: Layer, seen: tuple[Moments, Moments] | None) -> int:
    """The position whose nearest rounding changes the outputs least."""
    import numpy as np

    base = ranges.covering(float(np.abs(layer.weight).max(initial=0)))
    if seen is None:
        return ranges.best(Seen(float(np.abs(layer.weight).max(initial=0)), layer.weight.ravel()))

    def loss(position: int) -> float:
        near = np.clip(np.rint(layer.grouped * 2.0**position), -127, 127) * 2.0**-position
        return sum(float(weights.output_error(layer.grouped, near, half.covariance).sum()) for half in seen)

    return min(range(base, base + WEIGHT_CANDIDATES), key=lambda position: (loss(position), position))


def as_layer(head: Any, weight: Array, bias: Array | None) -> Layer:
    """A linear operator as [outputs, k] with its groups."""
    import numpy as np

    groups = attribute(head, "group", 1)
    if head.op_type == "Conv":
        flat = weight.reshape(weight.shape[0], -1)
    elif head.op_type == "ConvTranspose":
        count, each = weight.shape[0] // groups, weight.shape[1]
        flat = weight.reshape(groups, count, each, -1).transpose(0, 2, 1, 3).reshape(groups * each, -1)
    else:
        flat = weight if attribute(head, "transB", 0) else weight.T
    return Layer(np.ascontiguousarray(flat), np.zeros(len(flat)) if bias is None else bias, groups)


def as_weight(head: Any, flat: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `as_layer`."""
    groups = attribute(head, "group", 1)
    if head.op_type == "Conv":
        return flat.reshape(shape)
    if head.op_type == "ConvTranspose":
        found: Array = flat.reshape(groups, shape[1], shape[0] // groups, *shape[2:]).swapaxes(1, 2).reshape(shape)
        return found
    return flat if attribute(head, "transB", 0) else flat.T


def _halves(head: Any, layer: Layer, kernel: Sequence[int], values: Sequence[Array], *, second: bool = True) -> tuple[Moments, Moments]:
    """Moments of a layer's input columns over the even and over the odd samples."""
    each = max(1, POSITIONS // len(values))
    halves: list[Moments | None] = [None, None]
    for number, array in enumerate(values):
        found = statistics.moments(columns(head, layer, kernel, array, each, seed=number), second=second)
        halves[number % 2] = statistics.merge(halves[number % 2], found)
    first, last = halves[0], halves[1] or halves[0]
    assert first is not None and last is not None
    return first, last


def columns(head: Any, layer: Layer, kernel: Sequence[int], values: Array, most: int, *, seed: int) -> Array:
    """At most `most` of a layer's input columns, [groups, samples, k]; the same places for the same seed."""
    import numpy as np

    rng = np.random.RandomState(seed)
    if head.op_type != "Conv":
        rows = values.reshape(-1, values.shape[-1])
        return rows[_places(rng, len(rows), most)][None]
    names = {name: attribute(head, name) for name in ("strides", "dilations", "pads") if attribute(head, name) is not None}
    window = window_of(head.output[0], names, kernel)
    view = kernels.taps(kernels.padded(values, window.pads), window)
    places = _places(rng, view.shape[2] * view.shape[3], most)
    picked = view[:, :, places // view.shape[3], places % view.shape[3]]  # [N, C, places, kh, kw]
    grouped = picked.reshape(picked.shape[0], layer.groups, -1, *picked.shape[2:])
    return np.ascontiguousarray(grouped.transpose(1, 0, 3, 2, 4, 5).reshape(layer.groups, picked.shape[0] * len(places), -1))


def _places(rng: Any, count: int, most: int) -> Array:
    import numpy as np

    found: Array = np.arange(count) if count <= most else np.sort(rng.choice(count, most, replace=False))
    return found
