"""What 8 bits of the activations that layers read cost the outputs, and which of them stay in half precision for it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from edgekit.backends.coreml import layers, stream
from edgekit.backends.coreml.layers import MilLayer
from edgekit.progress import Progress, silent
from edgekit.quantize.choices import worth_most
from edgekit.quantize.grid import Affine
from edgekit.quantize.sampling import spread
from edgekit.virtual.coreml import interpreter
from edgekit.virtual.coreml.plan import Plan

JUDGES = 4
"""Samples that judge, spread over all: the error of one rounded activation is a mean over all that it holds already."""

MOST_MACS = 0.1
"""Share of the layers' multiply-adds that may be left to half precision: where 8 bits take half the time, that is a fifth more of it."""

LEAST_NOISE = 0.01
"""Share of the noise of all activations in 8 bits below which one of them is not worth half precision."""

WORST = 10


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one activation on its 8-bit grid: `noise` is the outputs' error power by it alone, relative to their own (worst output), `macs` what the
    layers `readers` multiply and add, `size` the root mean square of its values, and `step` that of its grid.
    """

    noise: float
    macs: int
    readers: tuple[str, ...]
    size: float
    step: float


def measure(
    plan: Plan,
    samples: Sequence[Mapping[str, Any]],
    grids: Mapping[str, Affine],
    kept: Collection[str] = (),
    progress: Progress = silent,
) -> dict[str, Cost]:
    """Costs by activation of a float program: each alone is rounded to its grid for the layers that read it (but those `kept`), all else as it is.

    Errors of different activations add up, as they are independent: the noise of a set is close to the sum.
    """
    import torch

    readers: dict[str, list[MilLayer]] = {}
    for layer in layers.find(plan):
        if layer.input in grids and layer.layer not in kept:
            readers.setdefault(layer.input, []).append(layer)
    chosen = [samples[index] for index in spread(len(samples), min(JUDGES, len(samples)))] if samples else []
    found: dict[str, list[tuple[dict[str, tuple[float, float]], float]]] = {name: [] for name in readers}
    with torch.inference_mode():
        for number, sample in enumerate(chosen):
            progress(number, len(chosen), "measuring what 8 bits cost")
            for name, row in _one(plan, sample, grids, readers).items():
                found[name].append(row)
    return {name: _cost(plan, rows, readers[name], grids[name]) for name, rows in found.items() if rows}


def _one(
    plan: Plan, sample: Mapping[str, Any], grids: Mapping[str, Affine], readers: Mapping[str, Sequence[MilLayer]]
) -> dict[str, tuple[dict[str, tuple[float, float]], float]]:
    """By activation: error and power of each output, and the mean square of its values. The float program goes on step by step; from the first
    layer that reads an activation a run of its own goes to the end.
    """
    first = {min(layer.place for layer in found): name for name, found in readers.items()}
    values, ends, sizes = dict(sample), dict[str, dict[str, Any]](), dict[str, float]()
    for place, step in enumerate(plan.steps):
        if place in first:
            name = first[place]
            sizes[name] = float((values[name].double() ** 2).mean())
            ends[name] = _end(plan, place, values, {layer.place for layer in readers[name]}, stream.on_grid(grids[name]))
        interpreter.advance(step, values, {})
    outputs = [name for name in plan.outputs if name in values]
    return {name: ({out: _error(values[out], end[out]) for out in outputs}, sizes[name]) for name, end in ends.items()}


def _end(plan: Plan, place: int, values: Mapping[str, Any], reading: Collection[int], function: Callable[[Any], Any]) -> dict[str, Any]:
    """The values at the end of the program where the steps `reading` read through `function`."""
    now = dict(values)
    for at in range(place, len(plan.steps)):
        step = plan.steps[at]
        interpreter.advance(stream.reading_through(step, function) if at in reading else step, now, {})
    return now


def _error(right: Any, given: Any) -> tuple[float, float]:
    return float(((right.double() - given.double()) ** 2).sum()), float((right.double() ** 2).sum())


def _cost(plan: Plan, rows: Sequence[tuple[dict[str, tuple[float, float]], float]], readers: Sequence[MilLayer], grid: Affine) -> Cost:
    noise = 0.0
    for out in rows[0][0]:
        error, power = (sum(row[out][part] for row, _ in rows) for part in (0, 1))
        noise = max(noise, min(error / max(power, 1e-30), 1.0) if error == error else 1.0)  # not a number: as bad as can be
    size = math.sqrt(sum(square for _, square in rows) / len(rows))
    return Cost(noise, sum(_macs(plan, layer) for layer in readers), tuple(layer.layer for layer in readers), size, grid.scale)


def _macs(plan: Plan, layer: MilLayer) -> int:
    step = plan.steps[layer.place]
    weight = step.constants[layer.parameter]
    return math.prod(step.operation.outputs[0].type.shape) * int(weight.numel() // weight.shape[layer.axis])


def too_dear(costs: Mapping[str, Cost]) -> tuple[str, ...]:
    """The activations to leave in half precision: those that cost the outputs most for the multiply-adds that read them, within `MOST_MACS`."""
    least = LEAST_NOISE * sum(cost.noise for cost in costs.values())
    gains = {name: cost.noise if cost.noise >= least else 0.0 for name, cost in costs.items()}
    budget = int(MOST_MACS * sum(cost.macs for cost in costs.values()))
    return worth_most(gains, {name: cost.macs for name, cost in costs.items()}, budget)


def rows(costs: Mapping[str, Cost], spared: Collection[str]) -> tuple[tuple[str, float, str], ...]:
    """(operator, dB that 8 bits of what it reads take from the outputs of a program whose activations all have them, reason), worst first."""
    total, found = sum(cost.noise for cost in costs.values()), []
    for name, cost in costs.items():
        told = f"reads values of typical size {cost.size:.3g}, whose 8 bits are steps of {cost.step:.3g}"
        loss_db = -10 * math.log10(max(1 - cost.noise / total, 1e-10)) if total else 0.0
        found += [(reader, round(loss_db, 3), f"{told}: left in half precision" if name in spared else told) for reader in cost.readers]
    return tuple(sorted((row for row in found if row[1] > 0), key=lambda row: (-row[1], row[0]))[:WORST])


def notice(costs: Mapping[str, Cost], spared: Collection[str]) -> tuple[str, ...]:
    """Which layers read half precision, and what share of the multiply-adds that is; nothing where none does."""
    names = [reader for name, cost in costs.items() if name in spared for reader in cost.readers]
    count = sum(len(cost.readers) for cost in costs.values())
    share = sum(costs[name].macs for name in spared) / max(sum(cost.macs for cost in costs.values()), 1)
    told = f"{len(names)} of {count} layers read half precision, where 8 bits cost the outputs most"
    return (f"{told}, and {1 - share:.1%} of the multiply-adds of layers stay in 8 bits: {', '.join(names)}",) if names else ()
