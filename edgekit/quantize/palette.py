"""Weights from a small table of values (palettization): which values, and which of them each weight becomes."""

from __future__ import annotations

from edgekit.quantize.rounding import BLOCK, inverse_factor
from edgekit.tensors import Array

ROUNDS = 30
"""Of Lloyd's iteration; it has settled to a fraction of a percent long before."""


def table(values: Array, weights: Array, count: int) -> Array:
    """`count` values, ascending float64, with the least weighted squared distance to `values` [n]: k-means in one dimension (Lloyd 1982,
    «Least Squares Quantization in PCM»), from quantiles of the weighted values so that the result is the same every time.
    """
    import numpy as np

    order = np.argsort(values, kind="stable")
    sorted_values, mass = values[order].astype(np.float64), weights[order].astype(np.float64) + 1e-12 * max(float(weights.mean()), 1e-30)
    sums, moments = np.concatenate([[0.0], np.cumsum(mass)]), np.concatenate([[0.0], np.cumsum(mass * sorted_values)])
    density = np.cumsum(np.cbrt(mass))  # between equal steps and equal counts: far values are few, and must be near an entry too
    near = np.interp((np.arange(count) + 0.5) / count * density[-1], density, sorted_values)
    even = np.linspace(sorted_values[0], sorted_values[-1], count)
    centers = np.sort((near + even) / 2)
    for _ in range(ROUNDS):
        edges = np.concatenate([[0], np.searchsorted(sorted_values, (centers[1:] + centers[:-1]) / 2), [len(values)]])
        held = np.diff(sums[edges])
        moved = np.where(held > 0, np.diff(moments[edges]) / np.maximum(held, 1e-300), centers)
        if np.allclose(moved, centers, rtol=1e-6, atol=0):
            break
        centers = np.sort(moved)
    return centers


def nearest(values: Array, entries: Array) -> Array:
    """Index of the entry of the ascending table `entries` that each value is nearest to, int64 of the same shape."""
    import numpy as np

    found: Array = np.searchsorted((entries[1:] + entries[:-1]) / 2, values)
    return found


def second_order(weight: Array, entries: Array, second: Array) -> Array:
    """Indices, int64 [groups, outputs / groups, k], that keep a layer's outputs closest: each column takes its nearest entries, and its
    error is spread over the columns still open by the inverse second moment (Frantar et al. 2022, «GPTQ»).

    `second` is float64 [groups, k, k], positive definite. Per output the result is never worse on `second` than the nearest entries.
    """
    import numpy as np

    from edgekit.quantize.rounding import output_error

    order = np.argsort(-np.diagonal(second, axis1=1, axis2=2), axis=1, kind="stable")
    sorted_second = np.take_along_axis(np.take_along_axis(second, order[:, :, None], 1), order[:, None, :], 2)
    spread = _spread(np.take_along_axis(weight, order[:, None, :], 2), entries, inverse_factor(sorted_second))
    found = np.take_along_axis(spread, np.argsort(order, axis=1, kind="stable")[:, None, :], 2)
    plain = nearest(weight, entries)
    better = output_error(weight, entries[found], second) < output_error(weight, entries[plain], second)
    return np.where(better.reshape(weight.shape[0], -1, 1), found, plain)


def _spread(weight: Array, entries: Array, factor: Array) -> Array:
    import numpy as np

    rest, indices = weight.astype(np.float64), np.empty(weight.shape, np.int64)
    for start in range(0, weight.shape[2], BLOCK):
        end = min(start + BLOCK, weight.shape[2])
        errors = np.empty((*weight.shape[:2], end - start))
        for j in range(start, end):
            column = rest[:, :, j]
            indices[:, :, j] = nearest(column, entries)
            errors[:, :, j - start] = (column - entries[indices[:, :, j]]) / factor[:, j, j][:, None]
            rest[:, :, j + 1 : end] -= errors[:, :, j - start, None] * factor[:, None, j, j + 1 : end]
        rest[:, :, end:] -= np.matmul(errors, factor[:, start:end, end:])
    return indices
