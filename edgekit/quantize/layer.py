"""One layer from float to integers: rounding, then bias, each used only where it does not make held-out samples worse."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from edgekit.quantize import bias, grid, rounding
from edgekit.quantize.gathering import Split
from edgekit.quantize.moments import DENSE, Layer, Moments, from_parts, in_parts, merge
from edgekit.tensors import Array

ROUND_OFF = 1e-5
"""Relative error of a covariance taken as the difference of single-precision moments."""

GOAL_DAMPINGS = (0.002, 0.03, 0.3)
"""How much the weights to round toward are held to the layer's own, in mean variances of its inputs."""

BIAS_STEPS = 2.0**30
"""A bias is stored in int32 steps; scales are kept large enough for half of that range."""

METHODS = ("nearest", "bias", "second-order")


@dataclasses.dataclass(frozen=True)
class Rounded:
    """`integers` [outputs, k] on `scales` [outputs, k] (symmetric), `bias` float64 [outputs].

    `in_parts` says that there are so many inputs that only those near one another made up for each other's errors, `weight_left` that weights
    stayed rounded to nearest, `bias_left` that the bias stayed what it was, because the method asked for made held-out samples worse.
    """

    integers: Array
    scales: Array
    bias: Array
    in_parts: bool = False
    weight_left: bool = False
    bias_left: bool = False

    @property
    def weight(self) -> Array:
        """The real weights that the integers stand for, float64 [outputs, k]."""
        return self.integers * self.scales


def round_layer(
    layer: Layer,
    seen: Split | None = None,
    wanted: Split | None = None,
    *,
    method: str = "second-order",
    bits: int = 8,
    scales: Array | None = None,
) -> Rounded:
    """Round a layer by `method`: `nearest`, `bias` (nearest, bias corrected) or `second-order` (and bias corrected).

    `seen` are moments of what the layer reads in the quantized model, on samples to learn from and on samples held out; `wanted` of
    what it reads in the float model at the same places (only means are used), the same where they are not given. Where `seen` holds
    the cross moments of both, weights are rounded toward what makes up for the difference. `scales` are [outputs, k]; by default those
    of the largest weight of each output. Raises `ValueError` for an unknown method or missing moments.
    """
    if method not in METHODS or (seen is None and method != "nearest"):
        raise ValueError(f"round_layer: method {method!r} {'needs moments of the inputs' if method in METHODS else 'is unknown'}")
    scales = grid.weight_scales(layer.weight, bits=bits) if scales is None else scales
    rounded = Rounded(grid.nearest(layer.weight, scales, bits=bits), scales, layer.bias.astype("float64"))
    if seen is None or method == "nearest":
        return rounded
    if method == "second-order":
        rounded = _by_data(layer, rounded, seen, wanted or seen, bits)
    return _with_bias(layer, rounded, seen, wanted or seen)


def _by_data(layer: Layer, plain: Rounded, seen: Split, wanted: Split, bits: int) -> Rounded:
    """Learn from `seen[0]` with more and more damping while the held-out samples agree; then settle single integers on all samples."""
    shape, floor = layer.grouped.shape, _floor(seen[0])
    scales = in_parts(plain.scales.reshape(shape), fill=1.0)
    best, goal = in_parts(plain.integers.reshape(shape)), _best_goal(layer, seen, wanted, floor)
    least, chosen = _loss(layer, best * scales, seen[1], wanted[1]), 0.0
    for damping in _dampings(seen[0].count / layer.weight.shape[1]):
        teach = rounding.damped(seen[0].covariance, damping, floor)  # the mean error is the bias's to take back
        found = rounding.second_order(_goal(layer, seen[0], wanted[0], goal, floor), scales, teach, bits=bits, sweeps=0)
        loss = _loss(layer, found * scales, seen[1], wanted[1])
        if chosen and loss >= least:
            break
        if loss < least:
            best, least, chosen = found, loss, damping
    if not chosen:
        return dataclasses.replace(plain, weight_left=True)
    everything, float_means = _both(seen), _both(wanted)
    target = _goal(layer, everything, float_means, goal, floor)
    second = rounding.damped(everything.covariance, chosen, floor)
    settled = rounding.coordinate_descent(target, best, scales, second, bits=bits)
    plain = dataclasses.replace(plain, in_parts=shape[2] > DENSE)
    return dataclasses.replace(plain, integers=from_parts(settled, layer.groups, shape[2]).reshape(plain.integers.shape))


def toward(layer: Layer, seen: Split, wanted: Split) -> Array:
    """The weights [groups, outputs / groups, k] to round toward, in the parts that `seen` has: those that make up for what earlier layers lost, as
    far as held-out samples agree; the layer's own where `seen` holds no cross moments.
    """
    floor = _floor(seen[0])
    return _goal(layer, _both(seen), _both(wanted), _best_goal(layer, seen, wanted, floor), floor)


def _floor(seen: Moments) -> float:
    import numpy as np

    return ROUND_OFF * float(np.trace(seen.second, axis1=1, axis2=2).max()) / int(seen.second.shape[1])


def _best_goal(layer: Layer, seen: Split, wanted: Split, floor: float) -> float | None:
    """The damping with which `_goal` from the samples that teach does best on those held out; None where the layer's own weights do."""
    if seen[0].cross is None:
        return None
    tried: tuple[float | None, ...] = (None, *GOAL_DAMPINGS)
    losses = [_loss(layer, _goal(layer, seen[0], wanted[0], damping, floor), seen[1], wanted[1]) for damping in tried]
    return tried[losses.index(min(losses))]


def _goal(layer: Layer, seen: Moments, wanted: Moments, damping: float | None, floor: float) -> Array:
    """The float weights [groups, outputs / groups, k], in the parts that `seen` has, that give, from what the quantized model reads, most nearly
    the float layer's outputs.

    Least squares of W w - V x: V = W E[w xT] E[x xT]^-1 = W + W (E[w xT] - E[x xT]) E[x xT]^-1, damped toward W; Li et al. 2025, «GPTAQ»
    (asymmetric calibration). Noise that earlier layers left in small inputs is so kept from growing.
    """
    import numpy as np

    weight, drift = in_parts(layer.grouped), None if damping is None else seen.drift(wanted.mean)
    if drift is None:
        return weight.astype(np.float64)
    missing = np.matmul(weight, drift).transpose(0, 2, 1)
    found: Array = weight + np.linalg.solve(rounding.damped(seen.covariance, damping or 0.0, floor), missing).transpose(0, 2, 1)
    return found


def _loss(layer: Layer, weight: Array, seen: Moments, wanted: Moments) -> float:
    """Mean squared distance of the outputs of `weight` (in parts) from the float layer's, but for their means and a constant."""
    import numpy as np

    own = in_parts(layer.grouped)
    drift = seen.drift(wanted.mean)
    found = float(rounding.output_error(weight, own, seen.covariance).sum())
    return found if drift is None else found - 2 * float((np.matmul(own, drift) * (weight - own)).sum())


def _dampings(samples_per_input: float) -> tuple[float, ...]:
    """Dampings worth trying. Many positions of few images are worth far fewer independent samples than they count."""
    return (0.1,) if samples_per_input >= 25 else (0.1, 1.0) if samples_per_input >= 5 else (1.0, 10.0)


def correct_bias(layer: Layer, rounded: Array, seen: Split, wanted: Split, present: Array) -> Array:
    """The bias, float64 [outputs], that takes back the mean error of `rounded` weights [outputs, k] on what they see; the `present` one
    where that is better on the held-out half.
    """
    moved, needed = (bias.corrected(layer, rounded, w.mean, s.mean) for w, s in zip(wanted, seen, strict=True))
    if ((moved - needed) ** 2).sum() > ((present - needed) ** 2).sum():
        return present.astype("float64")
    return bias.corrected(layer, rounded, _both(wanted).mean, _both(seen).mean)


def _with_bias(layer: Layer, rounded: Rounded, seen: Split, wanted: Split) -> Rounded:
    moved = correct_bias(layer, rounded.weight, seen, wanted, layer.bias)
    return dataclasses.replace(rounded, bias=moved, bias_left=bool((moved == layer.bias).all()))


def _both(halves: Split) -> Moments:
    return halves[0] if halves[0] is halves[1] else merge(*halves)


def bias_floor(bias: Array, reach: float, levels: int) -> Array | float:
    """Smallest weight scales, [outputs, 1], at which a bias still fits its int32 steps of input scale times weight scale.

    `reach` is how far the layer's inputs go, on either side of zero, over `levels` steps of their finest grid.
    """
    import numpy as np

    if not reach:
        return grid.TINY
    found: Array = np.abs(bias.astype(np.float64))[:, None] / (max(reach / levels, 1e-9) * BIAS_STEPS)
    return found


def left_alone(results: Sequence[Rounded]) -> tuple[str, ...]:
    """Notices about layers on which a method was not used because it was worse on held-out samples."""
    weights, biases = sum(rounded.weight_left for rounded in results), sum(rounded.bias_left for rounded in results)
    found = [in_parts_told(count, len(results))] if (count := sum(rounded.in_parts for rounded in results)) else []
    if weights:
        found.append(f"{weights} of {len(results)} layers keep weights rounded to nearest: rounding by data was worse on held-out samples")
    if biases:
        found.append(f"{biases} of {len(results)} layers keep their bias: its correction was worse on held-out samples")
    return tuple(found)


def in_parts_told(count: int, of: int) -> str:
    """The notice about layers with more inputs than are looked at together."""
    return f"{count} of {of} layers have over {DENSE} inputs: their weights are rounded without regard to what is further apart"
