"""One layer from float to integers: rounding, then bias, each used only where it does not make held-out samples worse."""

from __future__ import annotations

import dataclasses

from edgekit.quantize import bias, grid, rounding
from edgekit.quantize.moments import Layer, Moments, merge
from edgekit.tensors import Array

ROUND_OFF = 1e-5
"""Relative error of a covariance taken as the difference of single-precision moments."""

METHODS = ("nearest", "bias", "second-order")


@dataclasses.dataclass(frozen=True)
class Rounded:
    """`integers` [outputs, k] on `scales` [outputs, k] (symmetric), `bias` float64 [outputs].

    `weight_left` says that weights stayed rounded to nearest, `bias_left` that the bias stayed what it was, because the method asked for
    made held-out samples worse.
    """

    integers: Array
    scales: Array
    bias: Array
    weight_left: bool = False
    bias_left: bool = False

    @property
    def weight(self) -> Array:
        """The real weights that the integers stand for, float64 [outputs, k]."""
        return self.integers * self.scales


def round_layer(
    layer: Layer,
    seen: tuple[Moments, Moments] | None = None,
    wanted: tuple[Moments, Moments] | None = None,
    *,
    method: str = "second-order",
    bits: int = 8,
    scales: Array | None = None,
) -> Rounded:
    """Round a layer by `method`: `nearest`, `bias` (nearest, bias corrected) or `second-order` (and bias corrected).

    `seen` are moments of what the layer reads in the quantized model, on samples to learn from and on samples held out; `wanted` of
    what it reads in the float model at the same places (only means are used), the same where they are not given. `scales` are
    [outputs, k]; by default those of the largest weight of each output. Raises `ValueError` for an unknown method or missing moments.
    """
    if method not in METHODS or (seen is None and method != "nearest"):
        raise ValueError(f"round_layer: method {method!r} {'needs moments of the inputs' if method in METHODS else 'is unknown'}")
    scales = grid.weight_scales(layer.weight, bits=bits) if scales is None else scales
    rounded = Rounded(grid.nearest(layer.weight, scales, bits=bits), scales, layer.bias.astype("float64"))
    if seen is None or method == "nearest":
        return rounded
    if method == "second-order":
        rounded = _by_data(layer, rounded, seen, bits)
    return _with_bias(layer, rounded, seen, wanted or seen)


def _by_data(layer: Layer, plain: Rounded, seen: tuple[Moments, Moments], bits: int) -> Rounded:
    """Learn from `seen[0]` with more and more damping while the held-out samples agree; then settle single integers on all samples."""
    import numpy as np

    shape = layer.grouped.shape
    scales, (teach, judge) = plain.scales.reshape(shape), (half.covariance for half in seen)  # the mean error is the bias's to take back

    floor = ROUND_OFF * float(np.trace(seen[0].second, axis1=1, axis2=2).max()) / shape[2]

    def loss(integers: Array) -> float:
        return float(rounding.output_error(layer.grouped, integers.reshape(shape) * scales, judge).sum())

    best, least, chosen = plain.integers, loss(plain.integers), 0.0
    for damping in _dampings(seen[0].count / shape[2]):
        found = rounding.second_order(layer.grouped, scales, rounding.damped(teach, damping, floor), bits=bits, sweeps=0)
        if chosen and loss(found) >= least:
            break
        if loss(found) < least:
            best, least, chosen = found, loss(found), damping
    if not chosen:
        return dataclasses.replace(plain, weight_left=True)
    everything = rounding.damped(_both(seen).covariance, chosen, floor)
    settled = rounding.coordinate_descent(layer.grouped, best.reshape(shape), scales, everything, bits=bits)
    return dataclasses.replace(plain, integers=settled.reshape(plain.integers.shape))


def _dampings(samples_per_input: float) -> tuple[float, ...]:
    """Dampings worth trying. Many positions of few images are worth far fewer independent samples than they count."""
    return (0.1,) if samples_per_input >= 25 else (0.1, 1.0) if samples_per_input >= 5 else (1.0, 10.0)


def correct_bias(layer: Layer, rounded: Array, seen: tuple[Moments, Moments], wanted: tuple[Moments, Moments], present: Array) -> Array:
    """The bias, float64 [outputs], that takes back the mean error of `rounded` weights [outputs, k] on what they see; the `present` one
    where that is better on the held-out half.
    """
    moved, needed = (bias.corrected(layer, rounded, w.mean, s.mean) for w, s in zip(wanted, seen, strict=True))
    if ((moved - needed) ** 2).sum() > ((present - needed) ** 2).sum():
        return present.astype("float64")
    return bias.corrected(layer, rounded, _both(wanted).mean, _both(seen).mean)


def _with_bias(layer: Layer, rounded: Rounded, seen: tuple[Moments, Moments], wanted: tuple[Moments, Moments]) -> Rounded:
    moved = correct_bias(layer, rounded.weight, seen, wanted, layer.bias)
    return dataclasses.replace(rounded, bias=moved, bias_left=bool((moved == layer.bias).all()))


def _both(halves: tuple[Moments, Moments]) -> Moments:
    return halves[0] if halves[0] is halves[1] else merge(*halves)
