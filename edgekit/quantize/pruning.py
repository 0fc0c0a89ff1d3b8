"""Which weights become zero, and what the others become to make up for it."""

from __future__ import annotations

from edgekit.quantize.rounding import BLOCK, inverse_factor, output_error
from edgekit.tensors import Array


def by_magnitude(weight: Array, share: float) -> Array:
    """The weight with its smallest `share` of values set to zero."""
    import numpy as np

    return np.where(_largest(np.abs(weight), share), weight, 0.0)


def second_order(weight: Array, second: Array, share: float) -> Array:
    """float64 [groups, outputs / groups, k] with at least `share` of the values of every block of columns zero, outputs kept closest.

    Frantar and Alistarh 2023, «SparseGPT»: a weight costs w^2 over the diagonal of the inverse second moment of the columns still open; the
    error of those set to zero is spread over the open columns. `second` is float64 [groups, k, k], positive definite. Where the smallest
    weights are the better choice on `second`, for all outputs together, they are taken.
    """
    import numpy as np

    factor = inverse_factor(second)
    rest = weight.astype(np.float64)
    for start in range(0, weight.shape[2], BLOCK):
        end = min(start + BLOCK, weight.shape[2])
        diagonal = np.diagonal(factor[:, start:end, start:end], axis1=1, axis2=2)[:, None, :]
        kept = _largest(np.abs(rest[:, :, start:end] / diagonal), share)
        errors = np.empty(kept.shape)
        for j in range(start, end):
            column = rest[:, :, j].copy()
            rest[:, :, j] = np.where(kept[:, :, j - start], column, 0.0)
            errors[:, :, j - start] = (column - rest[:, :, j]) / factor[:, j, j][:, None]
            rest[:, :, j + 1 : end] -= errors[:, :, j - start, None] * factor[:, None, j, j + 1 : end]
        rest[:, :, end:] -= np.matmul(errors, factor[:, start:end, end:])
    plain = by_magnitude(weight, share)
    return rest if output_error(weight, rest, second).sum() < output_error(weight, plain, second).sum() else plain


def _largest(size: Array, share: float) -> Array:
    """True for all but the smallest `share` of values; of equal ones the first go."""
    import numpy as np

    kept = np.ones(size.size, bool)
    kept[np.argsort(size, axis=None, kind="stable")[: int(np.ceil(share * size.size))]] = False
    return kept.reshape(size.shape)
