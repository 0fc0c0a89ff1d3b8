"""Weights from tables of values: one table a layer, or one for each group of outputs."""

from __future__ import annotations

from edgekit.backends.coreml.halves import both, half
from edgekit.quantize import palette, rounding
from edgekit.quantize.gathering import Split
from edgekit.quantize.layer import correct_bias, toward
from edgekit.quantize.moments import Layer, from_parts, in_parts
from edgekit.tensors import Array

DAMPING = 0.1
"""Of the moments that indices are chosen by, in mean variances of the inputs."""

OVERHEAD = 1 / 32
"""Most bytes of a group's table, over those of its indices."""
FEWEST_OUTPUTS = 8
"""Of a group: as coremltools recommends, so that devices decode groups at once."""


def count(linear: Layer, bits: int) -> int:
    """How many tables a layer gets: as many as cost little beside the indices."""
    outputs, k = linear.weight.shape
    fewest = max(FEWEST_OUTPUTS, 2 * 2**bits / (OVERHEAD * k * bits / 8))
    size = next(size for size in range(1, outputs + 1) if outputs % size == 0 and (size >= fewest or size == outputs))
    return int(outputs // size)


def to_table(linear: Layer, split: tuple[Split, Split] | None, method: str, bits: int, groups: int = 1) -> tuple[Array, Array, Array]:
    """Indices [outputs, k], the ascending tables (float64 [groups, entries], on half precision's grid), and the bias."""
    import numpy as np

    weight, matter, k = linear.weight.astype(np.float64), np.ones(linear.weight.shape), linear.weight.shape[1]
    if split is not None and method == "second-order":
        weight = from_parts(toward(linear, *split), linear.groups, k).reshape(weight.shape)
        power = np.diagonal(both(split[0]).covariance, axis1=1, axis2=2)
        matter = np.repeat(from_parts(power[:, None], linear.groups, k)[:, 0], len(weight) // linear.groups, axis=0)
    parts = zip(weight.reshape(groups, -1), matter.reshape(groups, -1), strict=True)
    entries = np.stack([best(values, weights, bits) for values, weights in parts])
    indices = palette.nearest(weight, entries)
    if split is None or method == "nearest":
        return indices, entries, half(linear.bias).astype(np.float32)
    if method == "second-order":
        second = rounding.damped(both(split[0]).covariance, DAMPING)
        indices = _indices(weight.reshape(linear.groups, -1, k), entries, second).reshape(weight.shape)
    moved = correct_bias(linear, palette.looked_up(indices, entries), split[0], split[1], linear.bias)
    return indices, entries, half(moved).astype(np.float32)


def _indices(weight: Array, entries: Array, second: Array) -> Array:
    """Of weights [groups, outputs / groups, k], by the second moments of each part of their inputs."""
    import numpy as np

    groups, outputs, k = weight.shape
    parts = in_parts(weight).reshape(groups, -1, outputs, second.shape[1]).swapaxes(0, 1)
    seconds = second.reshape(groups, -1, *second.shape[1:]).swapaxes(0, 1)
    found = [palette.second_order(part, entries, own) for part, own in zip(parts, seconds, strict=True)]
    return np.concatenate(found, axis=2)[:, :, :k]


def best(values: Array, weights: Array, bits: int) -> Array:
    """2 ** bits entries, ascending, on half precision's grid; the last ones repeat where fewer are needed."""
    import numpy as np

    entries = np.unique(half(palette.table(values, weights, 2**bits)))
    found: Array = np.concatenate([entries, np.full(2**bits - len(entries), entries[-1])])
    return found
