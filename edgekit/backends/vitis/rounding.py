"""Weights and bias of one linear layer as int8 of two positions, rounded together for what the quantized layers before it give."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from edgekit.backends.vitis import positions as ranges
from edgekit.qdq import layers
from edgekit.qdq.layers import OnnxLayer
from edgekit.quantize import grid
from edgekit.quantize import rounding as weights
from edgekit.quantize.moments import Layer
from edgekit.tensors import Array

POSITIONS = 8000
"""Input positions of a layer taken over all samples."""

FINER = 1
"""Weight positions tried from the one that clips nothing upward: each halves the range."""

DAMPINGS = (0.1, 0.01, 1.0)
RIDGES = (0.03, 0.3, 3.0)
"""Shares of the mean power of inputs: how much is added to what few samples show, when rounding and when moving the weights."""

JUDGES = 4
"""Every fourth sample judges, the others teach."""


@dataclasses.dataclass(frozen=True)
class Sums:
    """Of a layer's quantized inputs x with a constant 1 behind them, and of what the float inputs have more (r): `second` E[x xT]
    [groups, k + 1, k + 1] and `cross` E[r xT] [groups, k, k + 1], float64.
    """

    count: int
    second: Array
    cross: Array


@dataclasses.dataclass(frozen=True)
class Integers:
    """Integers of a layer's weights [outputs, k] and bias [outputs], with their positions."""

    weight: Array
    weight_position: int
    bias: Array
    bias_position: int


def sums(layer: OnnxLayer, quantized: Sequence[Array], floats: Sequence[Array]) -> tuple[Sums, Sums]:
    """Over the samples that teach and over those that judge (the same where there are few)."""
    halves: dict[bool, Sums] = {}
    each = max(1, POSITIONS // len(quantized))
    for number, pair in enumerate(zip(quantized, floats, strict=True)):
        judge = number % JUDGES == JUDGES - 1
        seen, wanted = (layers.columns(layer, values, each, number) for values in pair)
        found = _sums(seen, wanted)
        halves[judge] = _together(halves[judge], found) if judge in halves else found
    return halves[False], halves.get(True, halves[False])


def _sums(seen: Array, wanted: Array) -> Sums:
    import numpy as np

    ones = np.ones((*seen.shape[:2], 1), seen.dtype)
    count, columns = seen.shape[1], np.concatenate([seen, ones], axis=2)
    second = np.matmul(columns.transpose(0, 2, 1), columns).astype(np.float64) / count
    return Sums(count, second, np.matmul((wanted - seen).transpose(0, 2, 1), columns).astype(np.float64) / count)


def _together(first: Sums, other: Sums) -> Sums:
    count = first.count + other.count
    a, b = first.count / count, other.count / count
    return Sums(count, a * first.second + b * other.second, a * first.cross + b * other.cross)


def together(layer: Layer, halves: tuple[Sums, Sums], allowed: Mapping[int, tuple[int, int]]) -> Integers:
    """The integers of least squared error of the layer's outputs against those of the float network, judged on held-out samples.

    The weights are first moved to where they take back what the layers before lost (least squares with a ridge: the asymmetric
    calibration of Li et al. 2025, «GPTAQ»), then the bias is rounded, then the weights, each taking over the error of those before it
    («GPTQ»): so a coarse grid of biases costs little. `allowed` holds weight positions to try, and for each the lowest and highest bias position.
    """
    import numpy as np

    start = np.concatenate([layer.grouped, layer.bias.reshape(layer.groups, -1, 1)], axis=2).astype(np.float64)
    wanted = _moved(layer, start, halves)
    bias = ranges.covering(float(np.abs(wanted[:, :, -1]).max(initial=0)))
    at = {position: ranges.clamp(bias, limits) for position, limits in allowed.items()}
    scales = {position: _scales(start.shape, position, at[position]) for position in allowed}

    def tried(position: int, integers: Array) -> tuple[float, int, Array]:
        return _loss(layer, start, integers * scales[position], halves[1]), position, integers

    found = [tried(position, grid.nearest(wanted, scales[position])) for position in allowed]
    found += [tried(position, _by_data(wanted, scales[position], halves[0], DAMPINGS[0])) for position in allowed]
    position = min(found, key=lambda one: one[0])[1]
    found += [tried(position, _by_data(wanted, scales[position], halves[0], damping)) for damping in DAMPINGS[1:]]
    _, position, integers = min(found, key=lambda one: one[0])
    flat = integers.reshape(len(layer.weight), -1)
    return Integers(flat[:, :-1], position, flat[:, -1], at[position])


def _scales(shape: tuple[int, ...], weight_position: int, bias_position: int) -> Array:
    import numpy as np

    scales = np.full(shape, 2.0**-weight_position)
    scales[:, :, -1] = 2.0**-bias_position
    return scales


def _moved(layer: Layer, start: Array, halves: tuple[Sums, Sums]) -> Array:
    """Weights and bias that give the float outputs from quantized inputs; as they were where held-out samples say so."""
    import numpy as np

    best, least = start, _loss(layer, start, start, halves[1])
    pull = np.matmul(layer.grouped.astype(np.float64), halves[0].cross)
    for ridge in RIDGES:
        moved = start + np.linalg.solve(_damped(halves[0].second, ridge), pull.swapaxes(1, 2)).swapaxes(1, 2)
        error = _loss(layer, start, moved, halves[1])
        if error < least:
            best, least = moved, error
    return best


def _loss(layer: Layer, start: Array, made: Array, seen: Sums) -> float:
    """Squared error of the outputs against the float network's, less a constant."""
    import numpy as np

    difference = start - made
    pull = np.matmul(layer.grouped.astype(np.float64), seen.cross)
    return float(((np.matmul(difference, seen.second) + 2 * pull) * difference).sum())


def _by_data(wanted: Array, scales: Array, seen: Sums, damping: float) -> Array:
    """Integers rounded column after column, the constant's first: scaled up, it is the largest input."""
    import numpy as np

    weigh = np.ones(wanted.shape[2])
    weigh[-1] = np.sqrt(np.diagonal(seen.second, axis1=1, axis2=2).max()) * 1e3
    second = _damped(seen.second, damping) * weigh[:, None] * weigh
    return weights.second_order(wanted / weigh, scales / weigh, second, sweeps=1)


def _damped(second: Array, damping: float) -> Array:
    """`second` with a share of the inputs' mean power on their diagonal; the constant's is known exactly."""
    import numpy as np

    power = np.diagonal(second, axis1=1, axis2=2)[:, :-1].mean(axis=1)
    added = np.eye(second.shape[1])
    added[-1, -1] = 0
    found: Array = second + added * np.maximum(damping * power, 1e-9)[:, None, None]
    return found
