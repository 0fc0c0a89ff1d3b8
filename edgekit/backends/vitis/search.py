"""Positions of activations by what they cost at the network's outputs: one tensor rounded at a time, everything else in float."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from edgekit.backends.vitis import positions as ranges
from edgekit.backends.vitis.net import Net, Unit, to_proto
from edgekit.errors import require
from edgekit.quantize.sampling import spread
from edgekit.tensors import Array, Arrays

COARSER, FINER = 1, 4
"""Positions tried around the one of least squared error of the tensor itself: a clipped tail often costs the outputs less than coarse steps."""

SAMPLES = 8
MEMORY_BYTES = 1_500_000_000
"""Samples looked at: as many as the activations of all fit in, and at least 2 where there are so many."""

MOST_TENSORS, MOST_SHARE = 32, 0.9
"""Tensors whose position is searched: the costliest, until they bring this share of all noise; the others keep theirs."""

WORSE = 4.0
"""No further position is tried that way once the noise is so many times the least."""

FEW = 2
"""Samples that tell which tensors bring noise at all."""

GAIN = 0.7
FOLDS = 4
"""Another position is taken only where it brings the noise below this share of what it was, and on no part of the samples above it: a tail that
few samples show is not clipped for the sake of the others."""


@dataclasses.dataclass(frozen=True)
class Tail:
    """What the outputs compute from tensors that it rounds to a scale that it is given; `given` is everything else it reads."""

    given: tuple[str, ...]
    outputs: tuple[str, ...]
    session: Any


def decibels(noise: float) -> float:
    """The SQNR that a share of noise leaves."""
    return -10 * math.log10(max(noise, 1e-12))


def costs(net: Net, units: Sequence[Unit], samples: Sequence[Arrays], positions: Mapping[str, int]) -> dict[str, float]:
    """The noise that rounding each tensor alone brings to the outputs, as a share of their power, summed over outputs.

    Tensors that must share a position are rounded together, and counted under the name of the first.
    """
    return _Search(net, units, samples, positions).costs()


def refine(
    net: Net,
    units: Sequence[Unit],
    samples: Sequence[Arrays],
    positions: Mapping[str, int],
    fixed: Collection[str] = (),
    known: Mapping[str, float] | None = None,
) -> tuple[dict[str, int], dict[str, float]]:
    """Positions of least noise at the outputs, and the noise then. Powers of independent noises add, so each tensor can be settled alone.

    Tensors in `fixed` keep their position. `known` are costs that need not be measured again to tell which tensors matter. Shift ranges are
    not looked at: `positions.choose` takes the result as a wish.
    """
    return _Search(net, units, samples, positions).refine(fixed, known or {})


class _Search:
    """What it takes to round tensors of one network: the float values of all, the power of the outputs, tensors by shared position."""

    def __init__(self, net: Net, units: Sequence[Unit], samples: Sequence[Arrays], positions: Mapping[str, int]) -> None:
        self._net, self._positions = net, positions
        self._values = _activations(net, samples)
        self._power = {name: max(sum(float((one[name].astype("float64") ** 2).sum()) for one in self._values), 1e-30) for name in net.outputs}
        self._groups = _variables(net, units, positions)

    def costs(self, known: Mapping[str, float] | None = None) -> dict[str, float]:
        few, found = self._values[:FEW], dict(known or {})
        unknown = [members for members in self._groups if members[0] not in found]

        def cost(members: tuple[str, ...]) -> float:
            return _noise(_tail(self._net, members), few, self._positions[members[0]], self._power) * len(self._values) / len(few)

        with _pool() as pool:
            found |= {members[0]: noise for members, noise in zip(unknown, pool.map(cost, unknown), strict=True)}
        return {members[0]: found[members[0]] for members in self._groups}

    def refine(self, fixed: Collection[str], known: Mapping[str, float]) -> tuple[dict[str, int], dict[str, float]]:
        costs, made = self.costs(known), dict(self._positions)
        asked = [members for members in self._worst(costs) if not set(members) & set(fixed)]
        with _pool() as pool:
            for members, (position, cost) in zip(asked, pool.map(self._best, asked), strict=True):
                made |= dict.fromkeys(members, position)
                costs[members[0]] = cost
        return made, costs

    def _worst(self, costs: Mapping[str, float]) -> list[tuple[str, ...]]:
        """The costliest tensors, worst first."""
        order, brought, total = sorted(self._groups, key=lambda members: -costs[members[0]]), 0.0, sum(costs.values())
        for count, members in enumerate(order[:MOST_TENSORS]):
            if brought >= MOST_SHARE * total:
                return order[:count]
            brought += costs[members[0]]
        return order[:MOST_TENSORS]

    def _best(self, members: tuple[str, ...]) -> tuple[int, float]:
        tail, best = _tail(self._net, members), self._positions[members[0]]
        held, start = self._folds(tail, best), best
        for way, most in ((1, FINER), (-1, COARSER)):
            for position in range(start + way, start + way * (most + 1), way):
                found = self._folds(tail, position)
                if sum(found) > WORSE * sum(held):
                    break
                if sum(found) < GAIN * sum(held) and all(new <= old for new, old in zip(found, held, strict=True)):
                    best, held = position, found
        return best, sum(held)

    def _folds(self, tail: Tail, position: int) -> list[float]:
        """The noise on each of `FOLDS` parts of the samples."""
        return [_noise(tail, self._values[fold::FOLDS], position, self._power) for fold in range(min(FOLDS, len(self._values)))]


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1)))


def _variables(net: Net, units: Sequence[Unit], positions: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Tensors by shared position, those that share it with none alone, in order."""
    shared = [tuple(group) for group in ranges.groups(net, units, positions)]
    taken = {name for group in shared for name in group}
    order = {name: number for number, name in enumerate(positions)}
    alone = [(name,) for name in positions if name not in taken]
    grouped = [tuple(sorted(group, key=order.__getitem__)) for group in shared]
    return sorted([*grouped, *alone], key=lambda group: order[group[0]])


def _activations(net: Net, samples: Sequence[Arrays]) -> list[dict[str, Array]]:
    """Every tensor of the float network on some of the samples."""
    names = list(dict.fromkeys([*(name for node in net.nodes for name in node.output if name), *net.outputs]))
    size = sum(4 * _size(net.shapes.get(name, ())) for name in names)
    count = min(len(samples), SAMPLES, max(2, MEMORY_BYTES // max(size, 1)))
    session = _session(to_proto(dataclasses.replace(net, proto=_with_outputs(net, names)), net.nodes, net.constants))
    found = []
    for index in spread(len(samples), count):
        given = {name: samples[index][name] for name in net.inputs}
        found.append(given | dict(zip(names, session.run(names, given), strict=True)))
    return found


def _size(shape: Sequence[int]) -> int:
    size = 1
    for side in shape:
        size *= max(side, 1)
    return size


def _with_outputs(net: Net, names: Sequence[str]) -> Any:
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(net.proto)
    del proto.graph.output[:]
    known = {value.name: value for value in net.proto.graph.output}
    proto.graph.output.extend(known.get(name) or onnx.ValueInfoProto(name=name) for name in names)
    return proto


def _tail(net: Net, members: tuple[str, ...]) -> Tail:
    """The part of the network behind some tensors."""
    import onnx

    touched, nodes = set(members), []
    for node in net.nodes:
        if touched & set(node.input):
            nodes.append(node)
            touched |= set(node.output)
    made: list[Any] = []
    rounded = {name: f"{name}/rounded" for name in members}
    computed = {name for node in nodes for name in node.output}
    for name in members:
        if name not in computed:
            made += _rounding(name, rounded[name])
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for index, name in enumerate(copy.input):
            copy.input[index] = rounded.get(name, name)
        made.append(copy)
        for name in node.output:
            if name in rounded:
                made += _rounding(name, rounded[name])
    given = tuple(dict.fromkeys(name for node in made for name in node.input if _outside(net, name, computed, rounded)))
    outputs = tuple(name for name in net.outputs if name in touched)
    return Tail(given, outputs, _session(_tail_proto(net, made, given, [rounded.get(name, name) for name in outputs])))


def _outside(net: Net, name: str, computed: set[str], rounded: Mapping[str, str]) -> bool:
    inner = computed | set(rounded.values()) | {"step", "dpu/zero", ""} | {f"{one}/q" for one in rounded}
    return name not in inner and name not in net.constants


def _rounding(name: str, to: str) -> list[Any]:
    import onnx

    return [
        onnx.helper.make_node("QuantizeLinear", [name, "step", "dpu/zero"], [f"{name}/q"]),
        onnx.helper.make_node("DequantizeLinear", [f"{name}/q", "step", "dpu/zero"], [to]),
    ]


def _tail_proto(net: Net, nodes: list[Any], given: Sequence[str], outputs: Sequence[str]) -> Any:
    import numpy as np
    import onnx

    kinds = {value.name: value.type.tensor_type.elem_type for value in (*net.proto.graph.input, *net.proto.graph.value_info)}
    inputs = [onnx.helper.make_tensor_value_info(name, kinds.get(name, onnx.TensorProto.FLOAT), net.shapes[name]) for name in given]
    inputs.append(onnx.helper.make_tensor_value_info("step", onnx.TensorProto.FLOAT, ()))
    constants = net.constants | {"dpu/zero": np.array(0, np.int8)}
    read = {name for node in nodes for name in node.input}
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items() if name in read]
    graph = onnx.helper.make_graph(nodes, "tail", inputs, [onnx.ValueInfoProto(name=name) for name in outputs], stored)
    return onnx.helper.make_model(graph, opset_imports=list(net.proto.opset_import), ir_version=9)


def _session(proto: Any) -> Any:
    ort = require("onnxruntime", extra="onnx", purpose="choosing positions by what they cost at the outputs")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _noise(tail: Tail, values: Sequence[Mapping[str, Array]], position: int, power: Mapping[str, float]) -> float:
    """Squared error of the outputs over their power, summed over outputs."""
    import numpy as np

    total = 0.0
    for one in values:
        feeds = {name: one[name] for name in tail.given} | {"step": np.array(2.0**-position, np.float32)}
        for name, made in zip(tail.outputs, tail.session.run(None, feeds), strict=True):
            total += float(((made.astype(np.float64) - one[name]) ** 2).sum()) / power[name]
    return total
