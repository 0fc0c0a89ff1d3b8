"""Weights from a small table of values (palettization): which values, and which of them each weight becomes."""

from __future__ import annotations

from edgekit.quantize.rounding import BLOCK, inverse_factor, output_error
from edgekit.tensors import Array

BINS = 512
"""Places that the search for a table tells apart; Lloyd's iteration then settles the entries between them."""
ROUNDS = 10


def table(values: Array, weights: Array, count: int) -> Array:
    """`count` values, ascending float64, with the least weighted squared distance to `values` [n]: k-means in one dimension, which dynamic
    programming solves (Wang and Song 2011, «Ckmeans.1d.dp»), on `BINS` bins, then Lloyd's iteration on the values themselves.
    """
    import numpy as np

    order = np.argsort(values, kind="stable")
    ordered, mass = values[order].astype(np.float64), weights[order].astype(np.float64)
    mass = np.maximum(mass, 1e-12 * max(float(mass.max()), 1e-30))  # what no input reads still is a weight
    places, index = np.unique(ordered, return_inverse=True)
    if len(places) > BINS:
        index = np.minimum(((ordered - ordered[0]) / (ordered[-1] - ordered[0]) * BINS).astype(np.int64), BINS - 1)
    binned = np.bincount(index, mass), np.bincount(index, mass * ordered), np.bincount(index, mass * ordered**2)
    used = binned[0] > 0
    mass_of, first, second = (part[used] for part in binned)
    centers = _best(mass_of, first, second, count)
    sums, moments = np.concatenate([[0.0], np.cumsum(mass)]), np.concatenate([[0.0], np.cumsum(mass * ordered)])
    for _ in range(ROUNDS):
        edges = np.concatenate([[0], np.searchsorted(ordered, (centers[1:] + centers[:-1]) / 2), [len(values)]])
        held = np.diff(sums[edges])
        centers = np.where(held > 0, np.diff(moments[edges]) / np.maximum(held, 1e-300), centers)
    return centers


def _best(mass: Array, first: Array, second: Array, count: int) -> Array:
    """Centers of the best partition of consecutive bins, given their moments of order 0, 1 and 2; the last ones repeat where bins are few."""
    import numpy as np

    m, f, s = (np.concatenate([[0.0], np.cumsum(part)]) for part in (mass, first, second))
    held = m[None, :] - m[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = (s[None, :] - s[:, None]) - (f[None, :] - f[:, None]) ** 2 / held
    cost = np.where(held > 0, np.maximum(cost, 0), np.inf)
    parts = min(count, len(mass))
    least, cuts = cost[0], []
    for _ in range(1, parts):
        total = least[:, None] + cost
        cuts.append(total.argmin(0))
        least = total.min(0)
    edges = [len(mass)]
    for cut in reversed(cuts):
        edges.append(int(cut[edges[-1]]))
    at = np.array([0, *reversed(edges)])
    centers = np.diff(f[at]) / np.diff(m[at])
    return np.concatenate([centers, np.full(count - parts, centers[-1])])


def nearest(values: Array, entries: Array) -> Array:
    """Index of the entry that each value is nearest to, int64 of the same shape. `entries` is one ascending table, or [tables, count], of which
    each serves an equal stretch of the values in their order (groups of outputs of [outputs, k]).
    """
    import numpy as np

    parts, tables = values.reshape(len(np.atleast_2d(entries)), -1), np.atleast_2d(entries)
    found = [np.searchsorted((row[1:] + row[:-1]) / 2, part) for part, row in zip(parts, tables, strict=True)]
    return np.stack(found).reshape(values.shape)


def looked_up(indices: Array, entries: Array) -> Array:
    """The values that indices stand for, with tables as in `nearest`."""
    import numpy as np

    tables = np.atleast_2d(entries)
    found: Array = np.take_along_axis(tables, indices.reshape(len(tables), -1), 1).reshape(indices.shape)
    return found


def second_order(weight: Array, entries: Array, second: Array) -> Array:
    """Indices, int64 [groups, outputs / groups, k], that keep a layer's outputs closest: each column takes its nearest entries, and its
    error is spread over the columns still open by the inverse second moment (Frantar et al. 2022, «GPTQ»).

    `second` is float64 [groups, k, k], positive definite; `entries` as in `nearest`. Per output the result is never worse on `second` than
    the nearest entries.
    """
    import numpy as np

    order = np.argsort(-np.diagonal(second, axis1=1, axis2=2), axis=1, kind="stable")
    sorted_second = np.take_along_axis(np.take_along_axis(second, order[:, :, None], 1), order[:, None, :], 2)
    spread = _spread(np.take_along_axis(weight, order[:, None, :], 2), entries, inverse_factor(sorted_second))
    found = np.take_along_axis(spread, np.argsort(order, axis=1, kind="stable")[:, None, :], 2)
    plain = nearest(weight, entries)
    better = output_error(weight, looked_up(found, entries), second) < output_error(weight, looked_up(plain, entries), second)
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
            errors[:, :, j - start] = (column - looked_up(indices[:, :, j], entries)) / factor[:, j, j][:, None]
            rest[:, :, j + 1 : end] -= errors[:, :, j - start, None] * factor[:, None, j, j + 1 : end]
        rest[:, :, end:] -= np.matmul(errors, factor[:, start:end, end:])
    return indices
