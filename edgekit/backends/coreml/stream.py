"""A float32 program and its rounded twin, run side by side on all samples, one layer after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgekit.backends.coreml import layers
from edgekit.backends.coreml.layers import MilLayer
from edgekit.quantize.gathering import Split
from edgekit.quantize.grid import Affine
from edgekit.quantize.moments import moments
from edgekit.tensors import Array
from edgekit.virtual.coreml import interpreter
from edgekit.virtual.coreml.plan import Plan, Step

COLUMNS = (4000, 8000)
"""Fewest and most input columns gathered a layer; between them, eight for each weight of an output."""

HELD_OUT = 4
"""Every fourth sample judges, the others teach."""

MEMORY_BYTES = 600_000_000
"""Live activations of both programs over all samples; fewer samples are used where they would take more."""


class Twins:
    """Both programs at one place. `half` rounds every result of the rounded one to half precision, but those of the operators `kept`."""

    def __init__(self, plan: Plan, samples: Sequence[Mapping[str, Any]], *, half: bool, kept: frozenset[str] = frozenset()) -> None:
        self.steps = list(plan.steps)
        self.samples = len(samples)
        self._place, self._half, self._kept = 0, half, kept
        self._through: dict[int, Callable[[Any], Any]] = {}
        self._float = [dict(sample) for sample in samples]
        self._rounded = [{name: self._stored(value) for name, value in sample.items()} for sample in samples]

    def advance(self, place: int, plan: Plan) -> None:
        """Run both up to `place` (exclusive): the float one by `plan`, the rounded one by its steps as they are now."""
        import torch

        with torch.inference_mode():
            for at in range(self._place, place):
                for values in self._float:
                    interpreter.advance(plan.steps[at], values, {})
                for values in self._rounded:
                    interpreter.advance(self.steps[at], values, {})
                    self._round(self.steps[at], values)
        self._place = place

    def halves(self, layer: MilLayer, count: int, *, second: bool) -> tuple[Split, Split]:
        """Moments of what a layer reads in the rounded program and in the float one at the same places, each on the samples that teach and on
        those that judge (the same where there is but one kind).
        """
        import numpy as np

        held: dict[bool, list[tuple[Array, Array]]] = {False: [], True: []}
        for number in range(self.samples):
            read, wanted = self._rounded[number][layer.input], self._float[number][layer.input]
            read = self._through[layer.place](read) if layer.place in self._through else read
            pair = [layers.columns(layer, self.steps[layer.place], value.float().numpy(), count, seed=number) for value in (read, wanted)]
            held[number % HELD_OUT == HELD_OUT - 1].append((pair[0], pair[1]))
        halves = []
        for pairs in (held[False], held[True] or held[False]):
            read, wanted = (np.concatenate(part, axis=1) for part in zip(*pairs, strict=True))
            halves.append((moments(read, wanted, second=second), moments(wanted, second=False)))
        (teach, judge) = halves if held[True] else (halves[0], halves[0])
        return (teach[0], judge[0]), (teach[1], judge[1])

    def change(self, layer: MilLayer, constants: Mapping[str, Any]) -> None:
        """Give the rounded program other constants at a layer that it has not run yet."""
        step = self.steps[layer.place]
        self.steps[layer.place] = dataclasses.replace(step, constants={**step.constants, **constants})

    def read_through(self, layer: MilLayer, function: Callable[[Any], Any]) -> None:
        """Let a layer of the rounded program read its input through `function` (rounding to an activation's grid)."""
        self._through[layer.place] = function
        self.steps[layer.place] = reading_through(self.steps[layer.place], function)

    def error(self, plan: Plan) -> float:
        """How far the rounded outputs of the samples that judge are off, behind the last operator: the worst output's squared error over
        its power, 0 without samples.
        """
        judges = [n for n in range(self.samples) if n % HELD_OUT == HELD_OUT - 1] or list(range(self.samples))
        worst = 0.0
        for name in plan.outputs if judges else ():
            pairs = [(self._float[n][name].double(), self._rounded[n][name].double()) for n in judges if name in self._float[n]]
            power = sum(float((right**2).sum()) for right, _ in pairs)
            off = sum(float(((right - got) ** 2).sum()) for right, got in pairs)
            worst = max(worst, off / power if power else off)
        return worst if worst == worst else float("inf")  # not a number: as bad as can be

    def _round(self, step: Any, values: dict[str, Any]) -> None:
        if self._half and step.operation.name not in self._kept:
            for output in step.operation.outputs:
                if output.name in values:
                    values[output.name] = self._stored(values[output.name])

    def _stored(self, value: Any) -> Any:
        return value.half().float() if self._half and hasattr(value, "is_floating_point") and value.is_floating_point() else value


def reading_through(step: Step, function: Callable[[Any], Any]) -> Step:
    """A step that reads its `x` through `function`."""
    return dataclasses.replace(step, kernel=lambda x, **others: step.kernel(x=function(x), **others))


def on_grid(chosen: Affine) -> Callable[[Any], Any]:
    """What rounds a float32 tensor to a grid."""
    import torch

    return lambda value: torch.from_numpy(chosen.round(value.numpy()).astype("float32"))


def fitting(plan: Plan, samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """As many samples as fit `MEMORY_BYTES`: the largest results of a few operators in sequence stand for what is alive at once."""
    import math

    sizes = sorted((4 * math.prod(output.type.shape) for step in plan.steps for output in step.operation.outputs), reverse=True)
    alive = max(1, 2 * sum(sizes[:3]))
    return list(samples[: max(HELD_OUT, MEMORY_BYTES // alive)])


def count(k: int, samples: int) -> int:
    """Columns to gather of each sample for a layer of `k` weights an output."""
    return -(-min(max(8 * k, COLUMNS[0]), COLUMNS[1]) // samples)
