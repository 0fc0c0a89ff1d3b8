"""Weights and biases of an ML Program moved to what is stored: half precision, 8-bit steps, or entries of a table; layer after layer, each on what
it sees behind the layers rounded before it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from edgekit.backends.coreml import layers, stream, tables
from edgekit.backends.coreml.halves import both, half, to_half
from edgekit.backends.coreml.layers import MilLayer
from edgekit.backends.coreml.stream import Twins
from edgekit.progress import Progress, silent
from edgekit.quantize import grid, palette, pruning, rounding
from edgekit.quantize.gathering import Split
from edgekit.quantize.layer import correct_bias, round_layer, toward
from edgekit.quantize.moments import DENSE, Layer, from_parts
from edgekit.tensors import Array
from edgekit.virtual.coreml.plan import Plan

LEAST_SCALE = 2.0**-24
"""The smallest half-precision number: scales are stored as such."""
SMALLEST = 2048
"""Weights of fewer elements stay in half precision: coremltools' threshold, below which compression saves nothing worth its loss."""

FEW_INPUTS = 32
"""Layers with fewer weights an output (depthwise, and the first one) have a table's error without its gain: they take 8-bit steps."""

BLOCKS = (32, 16, 24, 40, 20, 12)
"""Inputs that may share a scale in 4-bit steps, the best first."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """A layer as it will be stored. `weight` (in the program's layout) and `bias` (None: as it was) are the real values.

    `integers` with `scales` [outputs, blocks] (steps of `bits`) or `entries` [tables, count] (tables' values, `integers` their indices) say how,
    in the program's layout; without them the weight is in half precision. `mask`, of the same layout, says where a pruned weight is stored;
    it is 0 elsewhere.
    """

    layer: MilLayer
    weight: Array
    bias: Array | None
    integers: Array | None = None
    scales: Array | None = None
    entries: Array | None = None
    mask: Array | None = None
    bits: int = 8

    @property
    def half(self) -> bool:
        """Whether the weight is stored in half precision, every value of it."""
        return self.integers is None and self.mask is None


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to round: `bits` 8 or 4 for steps (`table` false), or 2 ** bits entries of a table; 16 for half precision. `method` as in a candidate.

    `grouped`: a table for each group of outputs, and scales for blocks of inputs (both from iOS 18 on), in place of one a layer and one an
    output. `sparsity` is the share of weights that become zero. Weights of fewer than `smallest` elements stay in half precision.
    """

    bits: int = 16
    table: bool = False
    method: str = "second-order"
    kept: frozenset[str] = frozenset()
    grouped: bool = False
    sparsity: float = 0.0
    smallest: int = SMALLEST


def round_program(
    plan: Plan,
    samples: Sequence[Mapping[str, Any]],
    recipe: Recipe,
    grids: Mapping[str, grid.Affine] | None = None,
    progress: Progress = silent,
) -> tuple[list[Stored], str]:
    """Round every linear layer but those of the operators `recipe.kept`, by the recipe's method, or to nearest where the outputs of held-out
    samples are closer then; deterministic. The second value is the method used.

    `grids` are the 8-bit grids of activations by name, which the rounded program's layers then read through; the weights of these layers are never
    too few, since only 8 bits by 8 bits are faster.
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
    readers = Counter(id(_weight(plan, layer)) for layer in found)
    twins = Twins(plan, samples, half=True, kept=recipe.kept)
    made = _taken(plan, recipe)
    for item in made:
        twins.change(item.layer, _constants(item))
    for number, layer in enumerate(found):
        progress(number, len(found), "rounding weights")
        linear, weight = layer.linear(plan.steps[layer.place]), _weight(plan, layer)
        shared = readers[id(weight)] > 1 and recipe.method == "second-order"  # stored once, it is fitted to no reader alone
        method = "bias" if shared else recipe.method
        how = dataclasses.replace(recipe, method=method, smallest=0 if layer.input in grids else recipe.smallest)
        split: tuple[Split, Split] | None = None
        if layer.input in grids:
            twins.read_through(layer, stream.on_grid(grids[layer.input]))
        if method != "nearest":
            twins.advance(layer.place, plan)
            k = linear.weight.shape[1]
            second = method == "second-order" and (k <= DENSE or recipe.bits < 16 or recipe.sparsity > 0)
            split = twins.halves(layer, stream.count(k, twins.samples), second=second)
        made.append(_round(layer, linear, split, method, how, weight.shape))
        twins.change(layer, _constants(made[-1]))
    twins.advance(len(plan.steps), plan)
    return made, twins.error(plan)


def _taken(plan: Plan, recipe: Recipe) -> list[Stored]:
    """The weights that are rounded to nearest, and never pruned: no data tells which of them matter."""
    found = [layer for layer in layers.find_taken(plan) if layer.layer not in recipe.kept]
    plain = dataclasses.replace(recipe, method="nearest", sparsity=0.0)
    made = [_round(layer, layer.linear(plan.steps[layer.place]), None, "nearest", plain, _weight(plan, layer).shape) for layer in found]
    return [dataclasses.replace(item, bias=None) for item in made]


def _weight(plan: Plan, layer: MilLayer) -> Any:
    return plan.steps[layer.place].constants[layer.parameter]


def _constants(stored: Stored) -> dict[str, Any]:
    import torch

    changed = {stored.layer.parameter: torch.from_numpy(stored.weight)}
    return changed if stored.bias is None or stored.layer.kind == "matmul" else {**changed, "bias": torch.from_numpy(stored.bias)}


def _round(layer: MilLayer, linear: Layer, split: tuple[Split, Split] | None, method: str, recipe: Recipe, shape: Sequence[int]) -> Stored:
    stored = tuple(int(size) for size in shape)
    small = linear.weight.size < recipe.smallest
    if recipe.sparsity and not small and linear.weight.shape[1] >= FEW_INPUTS:
        return _sparse(layer, linear, split, recipe, stored)
    if recipe.bits == 16 or small:
        seen, wanted = split or (None, None)
        weight, moved = to_half(linear, seen, wanted, method)
        return Stored(layer, layer.from_matrix(weight, stored), moved)
    if recipe.table and linear.weight.shape[1] >= FEW_INPUTS:
        indices, entries, moved = tables.to_table(linear, split, method, recipe.bits, tables.count(linear, recipe.bits) if recipe.grouped else 1)
        weight = palette.looked_up(indices, entries).astype("float32")
        return Stored(layer, layer.from_matrix(weight, stored), moved, layer.from_matrix(indices, stored), entries=entries)
    return _steps(layer, linear, split, method, recipe, stored)


def _steps(layer: MilLayer, linear: Layer, split: tuple[Split, Split] | None, method: str, recipe: Recipe, shape: tuple[int, ...]) -> Stored:
    """Integers times scales: 8 bits and a scale an output, or 4 bits and a scale for each block of an output's inputs."""
    block = _block(linear, shape) if recipe.bits == 4 else 0
    bits = recipe.bits if block else 8
    size = block or int(linear.weight.shape[1])
    parts = linear.weight.reshape(-1, size)
    scales = half(grid.weight_scales(parts, bits=bits, floor=LEAST_SCALE)).reshape(linear.weight.shape)
    rounded = round_layer(linear, *(split or ()), method=method, bits=bits, scales=scales)
    weight, moved = (half(values).astype("float32") for values in (rounded.weight, rounded.bias))
    return Stored(layer, layer.from_matrix(weight, shape), moved, layer.from_matrix(rounded.integers, shape), scales[:, ::size], bits=bits)


def _block(linear: Layer, shape: Sequence[int]) -> int:
    """Inputs that share a scale in 4 bits: as many as divide them; 0 where 4-bit steps do not pay, or a kernel has taps beside one another."""
    k = linear.weight.shape[1]
    return next((size for size in BLOCKS if k % size == 0), 0) if k >= FEW_INPUTS and max(shape[2:], default=1) == 1 else 0


def _sparse(layer: MilLayer, linear: Layer, split: tuple[Split, Split] | None, recipe: Recipe, shape: tuple[int, ...]) -> Stored:
    """Weights of which a share is zero, the others in half precision, 8-bit steps or a table; the bias takes back the mean error."""
    import numpy as np

    pruned = _pruned(linear, split, recipe)
    mask, weight = pruned != 0, half(pruned)
    integers, scales, entries = None, None, None
    if recipe.table:
        entries = tables.best(pruned[mask], np.ones(int(mask.sum())), recipe.bits)[None]
        integers = np.where(mask, palette.nearest(pruned, entries), 0)
        weight = np.where(mask, palette.looked_up(integers, entries), 0.0)
    elif recipe.bits == 8:
        steps = half(grid.weight_scales(pruned, floor=LEAST_SCALE))
        integers, scales = grid.nearest(pruned, steps), steps[:, :1]
        weight = half(integers * steps)
    moved = correct_bias(linear, weight, *split, linear.bias) if split else linear.bias
    laid = [None if part is None else layer.from_matrix(part, shape) for part in (weight.astype(np.float32), integers, mask)]
    assert laid[0] is not None
    return Stored(layer, laid[0], half(moved).astype(np.float32), laid[1], scales, entries, laid[2])


def _pruned(linear: Layer, split: tuple[Split, Split] | None, recipe: Recipe) -> Array:
    """The weight [outputs, k], float64, with a share of it zero."""
    import numpy as np

    if split is None or recipe.method != "second-order":
        return pruning.by_magnitude(linear.grouped, recipe.sparsity).reshape(linear.weight.shape).astype(np.float64)
    second = rounding.damped(both(split[0]).covariance, tables.DAMPING)
    pruned = pruning.second_order(toward(linear, *split), second, recipe.sparsity)
    return from_parts(pruned, linear.groups, linear.weight.shape[1]).reshape(linear.weight.shape)
