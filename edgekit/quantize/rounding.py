"""Which integer each weight becomes, chosen so that the layer's output changes least on the inputs it really sees."""

from __future__ import annotations

from edgekit.quantize import grid
from edgekit.tensors import Array

BLOCK = 64
"""Columns handled before the rest of the weights is updated at once: the loop works in cache, the update is one matrix product."""


def output_error(weight: Array, rounded: Array, second: Array) -> Array:
    """Mean squared change of each output, float64 [outputs]: diag(D S DT) with D = weight - rounded [groups, outputs, k], S [groups, k, k]."""
    import numpy as np

    difference = (weight - rounded).astype(np.float64)
    found: Array = (np.matmul(difference, second) * difference).sum(axis=2).reshape(-1)
    return found


def damped(second: Array, damping: float, floor: float = 0.0) -> Array:
    """`second` with `damping` times its mean diagonal, and at least `floor`, added to the diagonal: what few samples did not show must
    not be taken for zero.
    """
    import numpy as np

    mean = np.diagonal(second, axis1=1, axis2=2).mean(axis=1)
    found: Array = second.copy()
    place = np.arange(second.shape[1])
    found[:, place, place] += np.maximum(damping * mean, max(floor, grid.TINY))[:, None]
    return found


def second_order(weight: Array, scales: Array, second: Array, *, bits: int = 8, sweeps: int = 2) -> Array:
    """Integers (float64 [groups, outputs / groups, k]) that keep the outputs of a layer, not its weights, closest.

    Columns are rounded one by one, the largest input first («act-order»), and each error is spread over the columns still open by the
    inverse second moment: Frantar et al. 2022, «GPTQ», after Hassibi and Stork 1993, «Optimal Brain Surgeon». Then single integers
    are moved while that lowers the error: Behdin et al. 2023, «QuantEase», cyclic coordinate descent. Per output the result is never
    worse on `second` (float64 [groups, k, k], positive definite: E[x xT] or the covariance, `damped`) than rounding to nearest.
    `weight` and `scales` are [groups, outputs / groups, k].
    """
    import numpy as np

    plain = grid.nearest(weight, scales, bits=bits)
    order = np.argsort(-np.diagonal(second, axis1=1, axis2=2), axis=1, kind="stable")
    sorted_second = np.take_along_axis(np.take_along_axis(second, order[:, :, None], 1), order[:, None, :], 2)
    spread = _spread(np.take_along_axis(weight, order[:, None, :], 2), np.take_along_axis(scales, order[:, None, :], 2), sorted_second, bits)
    found = np.take_along_axis(spread, np.argsort(order, axis=1, kind="stable")[:, None, :], 2)
    better = output_error(weight, found * scales, second) < output_error(weight, plain * scales, second)
    start = np.where(better.reshape(weight.shape[0], -1, 1), found, plain)
    return coordinate_descent(weight, start, scales, second, bits=bits, sweeps=sweeps)


def coordinate_descent(weight: Array, integers: Array, scales: Array, second: Array, *, bits: int = 8, sweeps: int = 2) -> Array:
    """Move single integers to where the error is least with all others held («QuantEase»). Each move lowers the error or leaves it."""
    import numpy as np

    integers = integers.copy()
    gradient = np.matmul(weight - integers * scales, second)  # [groups, outputs, k]: half the error's slope, negated
    for _ in range(sweeps):
        before = integers.copy()
        for start in range(0, weight.shape[2], BLOCK):
            columns = slice(start, min(start + BLOCK, weight.shape[2]))
            moved = _descend(integers[:, :, columns], gradient[:, :, columns], scales[:, :, columns], second[:, columns, columns], bits)
            gradient -= np.matmul((moved - integers[:, :, columns]) * scales[:, :, columns], second[:, columns, :])
            integers[:, :, columns] = moved
        if np.array_equal(before, integers):
            break
    return integers


def _descend(integers: Array, gradient: Array, scales: Array, second: Array, bits: int) -> Array:
    """One cyclic pass over a block of columns, on a copy of its integers and gradient."""
    import numpy as np

    limit = 2 ** (bits - 1) - 1
    integers, gradient = integers.copy(), gradient.copy()
    for j in range(integers.shape[2]):
        curvature = second[:, j, j][:, None] * scales[:, :, j]
        step = np.divide(gradient[:, :, j], curvature, out=np.zeros_like(curvature), where=curvature > 0)
        moved = np.clip(np.rint(integers[:, :, j] + step), -limit, limit)
        gradient -= ((moved - integers[:, :, j]) * scales[:, :, j])[:, :, None] * second[:, None, j, :]
        integers[:, :, j] = moved
    return integers


def inverse_factor(second: Array) -> Array:
    """Upper triangular U with UT U = second^-1, float64 [groups, k, k]."""
    import numpy as np

    flipped = np.linalg.cholesky(second[:, ::-1, ::-1])  # J S J = L LT, so S^-1 = UT U with U = J L^-1 J, triangular the right way round
    return _inverse_of_triangle(flipped)[:, ::-1, ::-1]


def _inverse_of_triangle(lower: Array) -> Array:
    """The inverse of lower triangular matrices [groups, k, k], by halves: nearly all of it is matrix products."""
    import numpy as np

    size = lower.shape[1]
    if size <= BLOCK:
        small: Array = np.linalg.inv(lower)
        return small
    half = size // 2
    found = np.zeros_like(lower)
    found[:, :half, :half] = _inverse_of_triangle(lower[:, :half, :half])
    found[:, half:, half:] = _inverse_of_triangle(lower[:, half:, half:])
    found[:, half:, :half] = -np.matmul(found[:, half:, half:], np.matmul(lower[:, half:, :half], found[:, :half, :half]))
    return found


def _spread(weight: Array, scales: Array, second: Array, bits: int) -> Array:
    import numpy as np

    limit = 2 ** (bits - 1) - 1
    factor = inverse_factor(second)
    rest, integers = weight.astype(np.float64), np.empty(weight.shape)
    for start in range(0, weight.shape[2], BLOCK):
        end = min(start + BLOCK, weight.shape[2])
        errors = np.empty((*weight.shape[:2], end - start))
        for j in range(start, end):
            column = rest[:, :, j]
            integers[:, :, j] = np.clip(np.rint(column / scales[:, :, j]), -limit, limit)
            errors[:, :, j - start] = (column - integers[:, :, j] * scales[:, :, j]) / factor[:, j, j][:, None]
            rest[:, :, j + 1 : end] -= errors[:, :, j - start, None] * factor[:, None, j, j + 1 : end]
        rest[:, :, end:] -= np.matmul(errors, factor[:, start:end, end:])
    return integers
