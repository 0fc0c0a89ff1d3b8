"""Activations that an exporter wrote out, fused into the operator that targets have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from edgekit.legalize.onnx_rules import Rule
from edgekit.legalize.onnx_values import array, attribute, constant, near, number, shape


def _erf(op: Any, x: Any, root: Any, one: Any, divides: bool) -> Any:
    return op.Add(op.Erf(op.Div(x, root) if divides else op.Mul(x, root)), one)


def _gelu_half_first(op: Any, x: Any, root: Any, one: Any, half: Any) -> Any:
    return op.Mul(op.Mul(x, half), _erf(op, x, root, one, True))


def _gelu_half_first_scaled(op: Any, x: Any, root: Any, one: Any, half: Any) -> Any:
    return op.Mul(op.Mul(x, half), _erf(op, x, root, one, False))


def _gelu_half_last(op: Any, x: Any, root: Any, one: Any, half: Any) -> Any:
    return op.Mul(op.Mul(x, _erf(op, x, root, one, True)), half)


def _gelu_half_last_scaled(op: Any, x: Any, root: Any, one: Any, half: Any) -> Any:
    return op.Mul(op.Mul(x, _erf(op, x, root, one, False)), half)


def _gelu_half_inside(op: Any, x: Any, root: Any, one: Any, half: Any) -> Any:
    return op.Mul(x, op.Mul(_erf(op, x, root, one, True), half))


def _gelu_half_inside_scaled(op: Any, x: Any, root: Any, one: Any, half: Any) -> Any:
    return op.Mul(x, op.Mul(_erf(op, x, root, one, False), half))


def _gelu(op: Any, x: Any, root: Any, one: Any, half: Any) -> Any:
    right = near(half, 0.5) and near(one, 1.0) and (near(root, math.sqrt(2)) or near(root, math.sqrt(0.5)))
    return op.Gelu(x) if right and _divides(root) else None


def _divides(root: Any) -> bool:
    """The root of two divides, its inverse multiplies."""
    return all((node.op_type == "Div") == near(root, math.sqrt(2)) for node, _ in root.uses() if node.op_type in ("Div", "Mul"))


def _ramp(op: Any, x: Any, three: Any, low: Any, high: Any) -> Any:
    return op.Clip(op.Add(x, three), low, high)


def _hard_sigmoid_divided(op: Any, x: Any, three: Any, low: Any, high: Any, six: Any) -> Any:
    return op.Div(_ramp(op, x, three, low, high), six)


def _hard_sigmoid_scaled(op: Any, x: Any, three: Any, low: Any, high: Any, six: Any) -> Any:
    return op.Mul(_ramp(op, x, three, low, high), six)


def _hard_sigmoid(op: Any, x: Any, three: Any, low: Any, high: Any, six: Any) -> Any:
    return op.HardSigmoid(x, alpha=1 / 6, beta=0.5) if _is_ramp(three, low, high, six) else None


def _is_ramp(three: Any, low: Any, high: Any, six: Any) -> bool:
    divides = any(node.op_type == "Div" for node, _ in six.uses())  # the bound 6 of the Clip may be the very same constant
    return near(three, 3.0) and near(low, 0.0) and near(high, 6.0) and (near(six, 1 / 6) or (divides and near(six, 6.0)))


def _hard_swish_after(op: Any, x: Any, three: Any, low: Any, high: Any, six: Any) -> Any:
    return op.Div(op.Mul(x, _ramp(op, x, three, low, high)), six)


def _hard_swish_after_scaled(op: Any, x: Any, three: Any, low: Any, high: Any, six: Any) -> Any:
    return op.Mul(op.Mul(x, _ramp(op, x, three, low, high)), six)


def _hard_swish_written_out(op: Any, x: Any, three: Any, low: Any, high: Any, six: Any) -> Any:
    return op.HardSwish(x) if _is_ramp(three, low, high, six) else None


def _hard_swish_of_sigmoid(op: Any, x: Any) -> Any:
    return op.Mul(x, op.HardSigmoid(x, _allow_other_attributes=True, _outputs=["gate"]))


def _hard_swish(op: Any, x: Any, gate: Any) -> Any:
    node = gate.producer()
    right = abs(attribute(node, "alpha", 0.2) - 1 / 6) < 1e-6 and abs(attribute(node, "beta", 0.5) - 0.5) < 1e-6
    return op.HardSwish(x) if right else None


def _softplus_written_out(op: Any, x: Any, one: Any) -> Any:
    return op.Log(op.Add(op.Exp(x), one))


def _softplus(op: Any, x: Any, one: Any) -> Any:
    return op.Softplus(x) if near(one, 1.0) else None


def _div_chain(op: Any, x: Any, first: Any, second: Any) -> Any:
    return op.Div(op.Div(x, first), second)


def _one_factor(op: Any, x: Any, first: Any, second: Any) -> Any:
    values = number(first), number(second)
    if values[0] is None or values[1] is None or not values[0] * values[1] or shape(x) is None:
        return None
    return op.Mul(x, constant(op, 1 / (values[0] * values[1])))


def _bounded(kind: str) -> Callable[..., Any]:
    def pattern(op: Any, x: Any, bound: Any) -> Any:
        return getattr(op, kind)(x, bound, _outputs=["out"])

    return pattern


def _unbounded(sign: float) -> Callable[..., Any]:
    """A bound at infinity bounds nothing."""

    def replace(op: Any, x: Any, bound: Any, out: Any) -> Any:
        value = array(bound)
        nothing = value is not None and value.dtype.kind == "f" and bool((value == sign * math.inf).all())
        return op.Identity(x) if nothing and shape(x) is not None and shape(x) == shape(out) else None

    return replace


def _raised_after(op: Any, x: Any, low: Any, high: Any) -> Any:
    return op.Max(op.Min(x, high), low)


def _lowered_after(op: Any, x: Any, low: Any, high: Any) -> Any:
    return op.Min(op.Max(x, low), high)


def _clipped(op: Any, x: Any, low: Any, high: Any) -> Any:
    ends = number(low), number(high)
    if ends[0] is None or ends[1] is None or not -math.inf < ends[0] <= ends[1] < math.inf or shape(x) is None:
        return None
    return op.Clip(x, constant(op, ends[0]), constant(op, ends[1]))


def _sum_of_two(op: Any, x: Any, y: Any) -> Any:
    return op.Sum(x, y)


def _added(op: Any, x: Any, y: Any) -> Any:
    return op.Add(x, y)


GELU = (_gelu_half_first, _gelu_half_first_scaled, _gelu_half_last, _gelu_half_last_scaled, _gelu_half_inside, _gelu_half_inside_scaled)

RULES = (
    Rule("sum-of-two", "it is an addition", ("Sum",), ("Add",), (_sum_of_two,), _added, commutes=False),
    Rule("gelu", "written out with Erf, which NPUs lack", ("Erf", "Mul", "Add"), ("Gelu",), GELU, _gelu, opset=20),
    Rule("softplus", "written out with Exp, which overflows in half precision and rounds 1 away", ("Exp", "Add", "Log"), ("Softplus",),
         (_softplus_written_out,), _softplus),
    Rule("hard-sigmoid", "written out with Clip: one operator has one range to quantize", ("Clip", "Add"), ("HardSigmoid",),
         (_hard_sigmoid_divided, _hard_sigmoid_scaled), _hard_sigmoid, joined=("Add", "Clip")),
    Rule("hard-swish", "written out with Clip: one operator has one range to quantize", ("Clip", "Add", "Mul"), ("HardSwish",),
         (_hard_swish_after, _hard_swish_after_scaled), _hard_swish_written_out, joined=("Add", "Clip")),
    Rule("hard-swish-gate", "its gate was an operator of its own", ("HardSigmoid", "Mul"), ("HardSwish",), (_hard_swish_of_sigmoid,), _hard_swish,
         joined=("HardSigmoid", "Mul")),
    Rule("max-infinity", "a bound at infinity bounds nothing, and no integer stands for it", ("Max",), (), (_bounded("Max"),), _unbounded(-1.0)),
    Rule("min-infinity", "a bound at infinity bounds nothing, and no integer stands for it", ("Min",), (), (_bounded("Min"),), _unbounded(1.0)),
    Rule("clip", "two bounds are one operator with one range to quantize", ("Max", "Min"), ("Clip",), (_raised_after, _lowered_after), _clipped),
    Rule("div-chain", "two divisions by constants are one multiplication", ("Div",), ("Mul",), (_div_chain,), _one_factor, commutes=False,
         joined=("Div", "Div")),
)  # fmt: skip
