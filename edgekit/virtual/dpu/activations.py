"""Activations on an exact accumulator, before the shift: the accelerator fuses them into the operator that makes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgekit.tensors import Array
from edgekit.virtual.dpu.arithmetic import accumulator_type, fraction
from edgekit.virtual.dpu.operands import Accumulated, refuse

LEAKY_BITS = 8
"""LeakyReLU's slope is k / 256 (26 / 256 on the DPU)."""

SIXTH = 1 / 6

Limits = Sequence[float | None]


def relu(made: Accumulated, _attributes: Mapping[str, Any], _limits: Limits) -> Accumulated:
    """max(x, 0)."""
    return _mapped(made, "Relu", lambda x: x.clip(0))


def clip(made: Accumulated, _attributes: Mapping[str, Any], limits: Limits) -> Accumulated:
    """Between two constants that the accumulator's steps reach exactly (ReLU6: 0 and 6)."""
    low, high = (end if limit is None else _steps(made, limit) for limit, end in zip(limits, (-made.bound, made.bound), strict=True))
    return _mapped(made, "Clip", lambda x: x.clip(low, high))


def leaky_relu(made: Accumulated, attributes: Mapping[str, Any], _limits: Limits) -> Accumulated:
    """x, or x * k / 256 below zero."""
    alpha = float(attributes.get("alpha", 0.01))
    share = fraction(alpha)
    if share is None or share[1] > LEAKY_BITS:
        raise refuse(made.name, f"LeakyRelu with slope {alpha:.6g}", "the accelerator has multiples of 1/256: 26/256 for 0.1")
    k, one = share[0] << (LEAKY_BITS - share[1]), 1 << LEAKY_BITS
    bound = made.bound * max(one, abs(k))
    kind = accumulator_type(bound)

    def compute(x: Array) -> Array:
        wide: Array = x.astype(kind)
        found: Array = wide * (one + (wide < 0) * (k - one))
        return found

    return dataclasses.replace(_mapped(made, "LeakyRelu", compute), position=made.position + LEAKY_BITS, bound=bound)


def hard_sigmoid(made: Accumulated, attributes: Mapping[str, Any], _limits: Limits) -> Accumulated:
    """(x + 3) between 0 and 6, over 6; the factor 2731 / 16384 * 6 that must follow makes it x * 2731 / 2^14."""
    alpha, beta = float(attributes.get("alpha", 0.2)), float(attributes.get("beta", 0.5))
    if abs(alpha - SIXTH) > 1e-6 or beta != 0.5 or made.divisor != 1:
        raise refuse(made.name, f"HardSigmoid with alpha {alpha:.6g} and beta {beta:.6g}", "the accelerator has 1/6 and 1/2")
    three = _steps(made, 3.0)
    found = _mapped(made, "HardSigmoid", lambda x: (x + three).clip(0, 2 * three))
    return dataclasses.replace(found, bound=2 * three, divisor=6)


def _mapped(made: Accumulated, kind: str, function: Callable[[Array], Array]) -> Accumulated:
    inner = made.compute
    name = f"{made.type}+{kind}" if made.type != "Identity" else kind
    return dataclasses.replace(made, type=name, compute=lambda arrays: _int32(function, inner(arrays)))


def _int32(function: Callable[[Array], Array], values: Array) -> Array:
    import numpy as np

    return function(values if values.dtype.itemsize >= 4 else values.astype(np.int32))


def _steps(made: Accumulated, real: float) -> int:
    steps = real * 2.0**made.position * made.divisor
    if steps != int(steps):
        raise refuse(made.name, f"the bound {real:g} is no whole number of steps of 2^{-made.position}")
    return int(steps)


ACTIVATIONS: dict[str, Callable[[Accumulated, Mapping[str, Any], Limits], Accumulated]] = {
    "Relu": relu,
    "Clip": clip,
    "LeakyRelu": leaky_relu,
    "HardSigmoid": hard_sigmoid,
}
