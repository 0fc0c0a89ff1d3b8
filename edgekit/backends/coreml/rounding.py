"""Weights and biases of an ML Program moved to what is stored: half precision, 8-bit steps, or entries of a table; layer after layer, each on what
it sees behind the layers rounded before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgekit.backends.coreml import layers, stream
from edgekit.backends.coreml.layers import MilLayer
from edgekit.backends.coreml.stream import Split, Twins
from edgekit.progress import Progress, silent
from edgekit.quantize import grid, palette, rounding
from edgekit.quantize.layer import correct_bias, round_layer
from edgekit.quantize.moments import Layer, Moments, merge
from edgekit.tensors import Array
from edgekit.virtual.coreml.plan import Plan

HALF_DIGITS = 10
HALF_LEAST_EXPONENT = -14
DAMPING = 0.01
"""Of the moments that half precision is rounded by: steps are so small that few samples are enough."""

PALETTE_DAMPING = 0.1
LEAST_SCALE = 2.0**-24
"""The smallest half-precision number: scales are stored as such."""
SMALLEST = 2048
"""Weights of fewer elements stay in half precision: coremltools' threshold, below which compression saves nothing worth its loss."""

FEW_INPUTS = 32
"""Layers with fewer weights an output (depthwise, and the first one) have a table's error without its gain: they take 8-bit steps."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """A layer as it will be stored. `weight` (in the program's layout) and `bias` are the real values.

    `integers` with `scales` [outputs] (8-bit steps) or `entries` (a table's values, `integers` their indices) say how, both in the program's
    layout; without them the weight is in half precision.
    """

    layer: MilLayer
    weight: Array
    bias: Array
    integers: Array | None = None
    scales: Array | None = None
    entries: Array | None = None


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to round: `bits` 8 for steps (`table` false), or 2 ** bits entries of a table; 16 for half precision. `method` as in a candidate."""

    bits: int = 16
    table: bool = False
    method: str = "second-order"
    kept: frozenset[str] = frozenset()


def round_program(
    plan: Plan,
    samples: Sequence[Mapping[str, Any]],
    recipe: Recipe,
    grids: Mapping[str, grid.Affine] | None = None,
    progress: Progress = silent,
) -> tuple[list[Stored], str]:
    """Round every linear layer but those of the operators `recipe.kept`, by the recipe's method, or to nearest where the outputs of held-out
    samples are closer then; deterministic. The second value is the method used.

    `grids` are the 8-bit grids of activations by name, which the rounded program's layers then read through.
    """
    if not samples or recipe.method == "nearest":
        return _rounded(plan, samples, dataclasses.replace(recipe, method="nearest"), grids or {}, progress)[0], "nearest"
    asked, error = _rounded(plan, samples, recipe, grids or {}, progress)
    plain, plain_error = _rounded(plan, samples, dataclasses.replace(recipe, method="nearest"), grids or {}, progress)
    return (asked, recipe.method) if error <= plain_error else (plain, "nearest")


def _rounded(
    plan: Plan, samples: Sequence[Mapping[str, Any]], recipe: Recipe, grids: Mapping[str, grid.Affine], progress: Progress
) -> tuple[list[Stored], float]:
    """The layers, and how far the outputs of the samples that judge are off."""
    found = [layer for layer in layers.find(plan) if layer.layer not in recipe.kept]
    method = recipe.method
    twins = Twins(plan, samples, half=True, kept=recipe.kept)
    made: list[Stored] = []
    for number, layer in enumerate(found):
        progress(number, len(found), "rounding weights")
        linear = layer.linear(plan.steps[layer.place])
        split: tuple[Split, Split] | None = None
        if layer.input in grids:
            twins.read_through(layer, _on_grid(grids[layer.input]))
        if method != "nearest":
            twins.advance(layer.place, plan)
            columns = stream.count(linear.weight.shape[1], twins.samples)
            split = tuple(twins.halves(layer, columns, rounded=rounded, second=method == "second-order" and rounded) for rounded in (True, False))  # type: ignore[assignment]
        made.append(_round(layer, linear, split, method, recipe, plan.steps[layer.place].constants[layer.parameter].shape))
        twins.change(layer, _constants(made[-1]))
    twins.advance(len(plan.steps), plan)
    return made, twins.error(plan)


def _on_grid(chosen: grid.Affine) -> Callable[[Any], Any]:
    import torch

    return lambda value: torch.from_numpy(chosen.round(value.numpy()).astype("float32"))


def _constants(stored: Stored) -> dict[str, Any]:
    import torch

    changed = {stored.layer.parameter: torch.from_numpy(stored.weight)}
    return changed if stored.layer.kind == "matmul" else {**changed, "bias": torch.from_numpy(stored.bias)}


def _round(layer: MilLayer, linear: Layer, split: tuple[Split, Split] | None, method: str, recipe: Recipe, shape: Sequence[int]) -> Stored:
    stored = tuple(int(size) for size in shape)
    if recipe.bits == 16 or linear.weight.size < SMALLEST:
        weight, moved = to_half(linear, split, method)
        return Stored(layer, layer.from_matrix(weight, stored), moved)
    if recipe.table and linear.weight.shape[1] >= FEW_INPUTS:
        indices, entries, moved = to_table(linear, split, method, recipe.bits)
        weight = entries[indices].astype("float32")
        return Stored(layer, layer.from_matrix(weight, stored), moved, layer.from_matrix(indices, stored), entries=entries)
    scales = _half(grid.weight_scales(linear.weight, floor=LEAST_SCALE))
    rounded = round_layer(linear, *(split or ()), method=method, scales=scales)
    weight = _half(rounded.weight).astype("float32")
    moved = _half(rounded.bias).astype("float32")
    return Stored(layer, layer.from_matrix(weight, stored), moved, layer.from_matrix(rounded.integers, stored), scales[:, 0])


def to_half(linear: Layer, split: tuple[Split, Split] | None, method: str) -> tuple[Array, Array]:
    """Weights [outputs, k] and bias on half precision's grid. By data, weights and bias are rounded as one matrix that reads [x, 1]."""
    import numpy as np

    wanted_bias = linear.bias.astype(np.float64)
    if split is not None:
        wanted_bias = correct_bias(linear, linear.weight.astype(np.float64), split[0], split[1], linear.bias)
    plain = _half(np.concatenate([linear.weight, wanted_bias[:, None]], axis=1))
    if split is None or method != "second-order":
        return plain[:, :-1].astype(np.float32), plain[:, -1].astype(np.float32)
    shape = (linear.groups, -1, plain.shape[1])
    exact = np.concatenate([linear.weight.astype(np.float64), wanted_bias[:, None]], axis=1).reshape(shape)
    steps = half_steps(exact)
    teach, judge = (_with_one(part, DAMPING) for part in split[0])
    found = _half(rounding.second_order(exact, steps, teach, bits=HALF_DIGITS + 3) * steps)
    better = rounding.output_error(exact, found, judge) < rounding.output_error(exact, plain.reshape(shape), judge)
    chosen = np.where(better[:, None], found.reshape(plain.shape), plain)
    return chosen[:, :-1].astype(np.float32), chosen[:, -1].astype(np.float32)


def to_table(linear: Layer, split: tuple[Split, Split] | None, method: str, bits: int) -> tuple[Array, Array, Array]:
    """Indices [outputs, k], the ascending table (float64, on half precision's grid), and the bias."""
    import numpy as np

    weight = linear.weight.astype(np.float64)
    matter = np.ones_like(weight)
    by_data = split is not None and method == "second-order"
    if by_data:
        power = np.diagonal(_both(split[0]).covariance, axis1=1, axis2=2)  # type: ignore[index]  # by_data says that it is there
        matter = np.repeat(power, len(weight) // linear.groups, axis=0)
    entries = np.unique(_half(palette.table(weight.reshape(-1), matter.reshape(-1), 2**bits)))
    entries = np.concatenate([entries, np.full(2**bits - len(entries), entries[-1])])
    indices = palette.nearest(weight, entries)
    if split is None or method == "nearest":
        return indices, entries, _half(linear.bias).astype(np.float32)
    if by_data:
        second = rounding.damped(_both(split[0]).covariance, PALETTE_DAMPING)
        indices = palette.second_order(weight.reshape(linear.groups, -1, weight.shape[1]), entries, second).reshape(weight.shape)
    moved = correct_bias(linear, entries[indices], split[0], split[1], linear.bias)
    return indices, entries, _half(moved).astype(np.float32)


def half_steps(values: Array) -> Array:
    """The distance of neighbors in half precision around each value (IEEE 754: 10 digits, least exponent -14)."""
    import numpy as np

    exponent = np.floor(np.log2(np.maximum(np.abs(values), 2.0**HALF_LEAST_EXPONENT)))
    found: Array = np.exp2(np.maximum(exponent, HALF_LEAST_EXPONENT) - HALF_DIGITS)
    return found


def _half(values: Array) -> Array:
    import numpy as np

    return values.astype(np.float16).astype(np.float64)


def _with_one(seen: Moments, damping: float) -> Array:
    """Second moments of [x, 1], float64 [groups, k + 1, k + 1], with those of x damped."""
    import numpy as np

    groups, k = seen.mean.shape
    out = np.ones((groups, k + 1, k + 1))
    floor = damping * float(np.trace(seen.covariance, axis1=1, axis2=2).mean()) / k * 1e-3
    out[:, :k, :k] = rounding.damped(seen.covariance, damping, floor) + seen.mean[:, :, None] * seen.mean[:, None, :]
    out[:, :k, k] = out[:, k, :k] = seen.mean
    out[:, k, k] = 1 + 1e-9
    return out


def _both(halves: Split) -> Moments:
    return halves[0] if halves[0] is halves[1] else merge(*halves)
