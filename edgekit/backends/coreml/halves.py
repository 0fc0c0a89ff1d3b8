"""Weights and biases on half precision's grid: a layer gives, from what it reads in the rounded program, what it gave in the float one."""

from __future__ import annotations

import dataclasses

from edgekit.quantize import rounding
from edgekit.quantize.gathering import Split
from edgekit.quantize.layer import correct_bias
from edgekit.quantize.moments import DENSE, Layer, Moments, merge
from edgekit.tensors import Array

DIGITS = 10
LEAST_EXPONENT = -14
DAMPING = 0.01
"""Of the moments that weights are rounded by: steps are so small that few samples are enough."""

GOAL_DAMPINGS = (0.001, 0.01, 0.1)
"""How much the weights to round toward are held to the layer's own, in mean variances of its inputs."""


@dataclasses.dataclass(frozen=True)
class _Joint:
    """Moments of [x, 1]: `second` (damped) and `exact` float64 [groups, k + 1, k + 1]; `drift` is E[([w, 1] - [x, 1]) [x, 1]T], w what the float
    program reads at the same places.
    """

    exact: Array
    drift: Array


def to_half(linear: Layer, seen: Split | None, wanted: Split | None, method: str) -> tuple[Array, Array]:
    """Weights [outputs, k] and bias, float32 on half precision's grid. With `second-order`, both are rounded as one matrix that reads [x, 1],
    toward the one that makes up for what earlier layers lost; weights of over `DENSE` inputs to nearest.
    """
    import numpy as np

    if seen is None or wanted is None or method == "nearest":
        return half(linear.weight).astype(np.float32), half(linear.bias).astype(np.float32)
    if method == "bias" or linear.weight.shape[1] > DENSE:
        moved = correct_bias(linear, half(linear.weight), seen, wanted, linear.bias)
        return half(linear.weight).astype(np.float32), half(moved).astype(np.float32)
    exact = np.concatenate([linear.weight, linear.bias[:, None]], axis=1).astype(np.float64).reshape(linear.groups, -1, linear.weight.shape[1] + 1)
    found = _by_data(exact, seen, wanted).reshape(len(linear.weight), -1)
    return found[:, :-1].astype(np.float32), found[:, -1].astype(np.float32)


def _by_data(exact: Array, seen: Split, wanted: Split) -> Array:
    """By second moments toward the goal that is best on the samples that judge; per output to nearest, where that is better on all samples."""
    import numpy as np

    teach, judge, every = (_joint(x, w) for x, w in zip((*seen, both(seen)), (*wanted, both(wanted)), strict=True))
    tried = [(float(_loss(exact, _goal(exact, seen[0], teach, damping), judge).sum()), damping) for damping in GOAL_DAMPINGS]
    least, damping = min(tried)
    goal = _goal(exact, both(seen), every, damping) if least < 0 else exact
    steps = half_steps(goal)
    found = half(rounding.second_order(goal, steps, _with_one(both(seen), DAMPING), bits=DIGITS + 3) * steps)
    better = _loss(exact, found, every) < _loss(exact, half(exact), every)
    return np.where(better[..., None], found, half(exact))


def _goal(exact: Array, seen: Moments, joint: _Joint, damping: float) -> Array:
    """The matrix that gives most nearly the float layer's outputs, by least squares (Li et al. 2025, «GPTAQ»), held to `exact` by `damping`."""
    import numpy as np

    missing = np.matmul(exact, joint.drift).transpose(0, 2, 1)
    found: Array = exact + np.linalg.solve(_with_one(seen, damping), missing).transpose(0, 2, 1)
    return found


def _loss(exact: Array, found: Array, joint: _Joint) -> Array:
    """Mean squared distance of each output from the float layer's, [groups, outputs / groups], but for a constant."""
    import numpy as np

    change = found - exact
    loss: Array = ((np.matmul(change, joint.exact) - 2 * np.matmul(exact, joint.drift)) * change).sum(axis=2)
    return loss


def _joint(seen: Moments, wanted: Moments) -> _Joint:
    import numpy as np

    groups, k = seen.mean.shape
    drift = np.zeros((groups, k + 1, k + 1))
    drift[:, :k, k] = wanted.mean - seen.mean
    drift[:, :k, :k] = seen.cross - seen.second if seen.cross is not None else drift[:, :k, k:] * seen.mean[:, None, :]
    return _Joint(_with_one(seen, 0.0), drift)


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


def half_steps(values: Array) -> Array:
    """The distance of neighbors in half precision around each value (IEEE 754: 10 digits, least exponent -14)."""
    import numpy as np

    exponent = np.floor(np.log2(np.maximum(np.abs(values), 2.0**LEAST_EXPONENT)))
    found: Array = np.exp2(np.maximum(exponent, LEAST_EXPONENT) - DIGITS)
    return found


def half(values: Array) -> Array:
    """The nearest half-precision numbers, as float64."""
    import numpy as np

    return values.astype(np.float16).astype(np.float64)


def both(halves: Split) -> Moments:
    """Moments of all samples."""
    return halves[0] if halves[0] is halves[1] else merge(*halves)
