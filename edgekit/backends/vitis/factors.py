"""Factors of channels that use int8 grids best: a network's rounding noise as a sum of positive terms, least where they balance.

A tensor or weight on a grid of one step has a noise of step^2 / 12, and its step follows its widest channel. Multiplying a channel by f in
what makes it and dividing by f in what reads it changes no result and moves noise between both sides. In the logarithms of the factors
the sum is convex (a geometric program; Boyd et al. 2007, «A tutorial on geometric programming») once maxima are taken as p-norms.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from edgekit.backends.vitis.channels import Linear
from edgekit.quantize.grid import TINY
from edgekit.tensors import Array

NORM = 16
"""The p of the norm that stands for a maximum."""

STEPS, RATE = 150, 0.1
LIMIT = math.log(256.0)
"""Factors stay within [1 / 256, 256]: a dead channel has no range to equalize."""

BIAS_SHARE = 0.3
"""How much of a bias's rounding error is counted: rounding of the weights beside it takes back a part."""

LEVELS = 127


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A stored activation: how far its channels reach, and the sensitivity of the outputs to noise in each."""

    name: str
    reach: Array
    sensitivity: Array


@dataclasses.dataclass(frozen=True)
class Problem:
    """All grids of a network. `energy` [channels] is the mean square of each layer's source, `groups` tells which channels of a class
    move together (index of a free logarithm for every channel); tensors without a class stay as they are.
    """

    layers: Sequence[Linear]
    tensors: Sequence[Tensor]
    energy: Mapping[str, Array]
    sensitivity: Mapping[str, Array]
    classes: Mapping[str, str]
    groups: Mapping[str, Array]


def solve(problem: Problem) -> dict[str, Array]:
    """Factors by class, float64 [channels]: Adam (Kingma and Ba 2015) on the logarithms."""
    import numpy as np

    logs = {name: np.zeros(int(group.max()) + 1) for name, group in problem.groups.items()}
    first, second = ({name: np.zeros_like(value) for name, value in logs.items()} for _ in "ab")
    terms = [_LayerTerm(problem, layer) for layer in problem.layers]
    for number in range(1, STEPS + 1):
        total, slopes = _noise(problem, terms, {name: logs[name][group] for name, group in problem.groups.items()})
        rate = RATE * (1 - number / (STEPS + 1))
        for name, group in problem.groups.items():
            slope = np.bincount(group, slopes[name] / total, len(logs[name])) + 1e-5 * logs[name]
            first[name] = 0.9 * first[name] + 0.1 * slope
            second[name] = 0.99 * second[name] + 0.01 * slope**2
            moved = first[name] / (1 - 0.9**number) / (np.sqrt(second[name] / (1 - 0.99**number)) + 1e-12)
            logs[name] = np.clip(logs[name] - rate * moved, -LIMIT, LIMIT)
    return {name: np.exp(logs[name][group]) for name, group in problem.groups.items()}


def noise(problem: Problem, logs: Mapping[str, Array]) -> tuple[float, dict[str, Array]]:
    """The network's rounding noise at its outputs for these logarithms of factors [channels], and its slope by each of them."""
    return _noise(problem, [_LayerTerm(problem, layer) for layer in problem.layers], logs)


def _noise(problem: Problem, terms: Sequence[_LayerTerm], logs: Mapping[str, Array]) -> tuple[float, dict[str, Array]]:
    import numpy as np

    slopes = {name: np.zeros(len(group)) for name, group in problem.groups.items()}
    total = sum(term.add(logs, slopes) for term in terms) + sum(_tensor(problem, tensor, logs, slopes) for tensor in problem.tensors)
    return total, slopes


def _tensor(problem: Problem, tensor: Tensor, logs: Mapping[str, Array], slopes: dict[str, Array]) -> float:
    """Noise of an activation's grid; adds its slope."""
    import numpy as np

    found = problem.classes.get(tensor.name)
    u = logs[found] if found else np.zeros(len(tensor.reach))
    step, share = _widest(tensor.reach * np.exp(u))
    passed = tensor.sensitivity * np.exp(-2 * u)
    noise: float = step**2 * float(passed.sum()) / 12
    if found:
        slopes[found] += noise * 2 * share - step**2 / 6 * passed
    return noise


def _widest(reach: Array) -> tuple[float, Array]:
    """The step that the widest channel asks for, and each channel's share in it."""
    import numpy as np

    top = max(float(reach.max(initial=0)), TINY)
    powers = (reach / top) ** NORM
    total = float(powers.sum())
    return (top * total ** (1 / NORM) / LEVELS, powers / total) if total else (TINY, np.zeros(len(reach)))


class _LayerTerm:
    """Noise of a layer's weights and of its bias."""

    def __init__(self, problem: Problem, layer: Linear) -> None:
        import numpy as np

        self._layer = layer
        self._source, self._output = problem.classes.get(layer.source), problem.classes.get(layer.output)
        self._top = max(float(layer.reach.max(initial=0)), TINY)
        self._powers = ((layer.reach / self._top) ** NORM).astype(np.float32)
        self._energy = problem.energy[layer.source] * layer.taps
        self._sensitivity = problem.sensitivity[layer.output]
        self._bias = np.abs(layer.bias)

    def add(self, logs: Mapping[str, Array], slopes: dict[str, Array]) -> float:
        """The noise; adds its slope."""
        import numpy as np

        outputs = len(self._layer.bias)
        u = logs[self._source] if self._source else np.zeros(len(self._energy))
        v = logs[self._output] if self._output else np.zeros(outputs)
        top = self._top * math.exp(v.max() - u.min())
        rows, columns = np.exp(NORM * (v - v.max())), np.exp(NORM * (u.min() - u))
        passed, energy = self._sensitivity * np.exp(-2 * v), self._energy * np.exp(2 * u)
        deep = self._powers.ndim == 1
        if deep:
            made, read = self._powers * columns, self._powers * rows
        else:
            made, read = self._powers @ columns.astype(np.float32), rows.astype(np.float32) @ self._powers
        total = max(float((made * rows).sum()), TINY)
        step = top * total ** (1 / NORM) / LEVELS
        terms = passed * energy if deep else passed * energy.sum()
        noise: float = step**2 / 12 * float(terms.sum())
        by_input = terms if deep else energy * passed.sum()
        bias_step, bias_share = _widest(self._bias * np.exp(v))
        bias: float = BIAS_SHARE * bias_step**2 / 12 * float(passed.sum())
        if self._output:
            slopes[self._output] += 2 * noise * made * rows / total - step**2 / 6 * terms
            slopes[self._output] += 2 * bias * bias_share - BIAS_SHARE * bias_step**2 / 6 * passed
        if self._source:
            slopes[self._source] += step**2 / 6 * by_input - 2 * noise * read * columns / total
        return noise + bias
