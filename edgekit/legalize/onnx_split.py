"""Operators that a target refuses, as operators that compute the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from edgekit.legalize.onnx_rules import Rule
from edgekit.legalize.onnx_values import array, attribute, axes, constant, number, shape


def _any(kind: str) -> Callable[..., Any]:
    """A pattern: one operator of a type, with whatever inputs and attributes; bound to `x` (its first input) and `out`."""

    def pattern(op: Any, x: Any) -> Any:
        return getattr(op, kind)(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["out"])

    return pattern


def _reduce(op: Any, kind: str, x: Any, node: Any) -> Any:
    """The reduction `kind` over the axes of `node`, in the form of its operator set."""
    over, keep = axes(node), attribute(node, "keepdims", 1)
    if over is None or attribute(node, "noop_with_empty_axes", 0):
        return None
    if kind == "ReduceSum" or len(node.inputs) > 1:  # ReduceSum takes its axes as an input from operator set 13 on, the others from 18 on
        return getattr(op, kind)(x, *((constant(op, over, "int64"),) if over else ()), keepdims=keep)
    return getattr(op, kind)(x, keepdims=keep, **({"axes": list(over)} if over else {}))


def _reduce_l1(op: Any, x: Any, out: Any) -> Any:
    return _reduce(op, "ReduceSum", op.Abs(x), out.producer())


def _reduce_sum_square(op: Any, x: Any, out: Any) -> Any:
    return _reduce(op, "ReduceSum", op.Mul(x, x), out.producer())


def _reduce_l2(op: Any, x: Any, out: Any) -> Any:
    total = _reduce(op, "ReduceSum", op.Mul(x, x), out.producer())
    return None if total is None else op.Sqrt(total)


def _reduce_log_sum(op: Any, x: Any, out: Any) -> Any:
    total = _reduce(op, "ReduceSum", x, out.producer())
    return None if total is None else op.Log(total)


def _reduce_log_sum_exp(op: Any, x: Any, out: Any) -> Any:
    """Around the largest value, so that nothing overflows."""
    node, over = out.producer(), axes(out.producer())
    sizes = shape(x)
    if not over or sizes is None or not attribute(node, "keepdims", 1):
        return None
    as_input = {} if len(node.inputs) > 1 else {"axes": list(over)}
    largest = op.ReduceMax(x, *(() if as_input else (constant(op, over, "int64"),)), keepdims=1, **as_input)
    return op.Add(op.Log(op.ReduceSum(op.Exp(op.Sub(x, largest)), constant(op, over, "int64"), keepdims=1)), largest)


def _all_axes(kind: str) -> Callable[..., Any]:
    """A reduction over everything names its axes."""

    def replace(op: Any, x: Any, out: Any) -> Any:
        node, sizes = out.producer(), shape(x)
        if not sizes or axes(node) != () or attribute(node, "noop_with_empty_axes", 0):
            return None
        every, keep = list(range(len(sizes))), attribute(node, "keepdims", 1)
        if kind == "ReduceSum" or len(node.inputs) > 1 or "axes" not in _attributes_of(kind, node):
            return getattr(op, kind)(x, constant(op, every, "int64"), keepdims=keep)
        return getattr(op, kind)(x, keepdims=keep, axes=every)

    return replace


def _attributes_of(kind: str, node: Any) -> tuple[str, ...]:
    """Names that the operator's own definition has in the node's operator set."""
    import onnx

    return tuple(onnx.defs.get_schema(kind, node.graph.opset_imports.get("", 17), "").attributes)


def _pairwise(kind: str) -> Callable[..., Any]:
    def replace(op: Any, x: Any, out: Any) -> Any:
        inputs = list(out.producer().inputs)
        if len(inputs) == 2:
            return None
        total = op.Identity(x) if len(inputs) == 1 else x
        for value in inputs[1:]:
            total = getattr(op, kind)(total, value)
        return total

    return replace


def _mean(op: Any, x: Any, out: Any) -> Any:
    inputs = list(out.producer().inputs)
    total = x
    for value in inputs[1:]:
        total = op.Add(total, value)
    return op.Mul(total, constant(op, 1 / len(inputs)))


def _gemm(op: Any, x: Any, out: Any) -> Any:
    """Factors go into the constants; a transposed first input becomes a Transpose."""
    node = out.producer()
    alpha, beta, turned = (attribute(node, name, default) for name, default in (("alpha", 1.0), ("beta", 1.0), ("transA", 0)))
    if alpha == beta == 1.0 and not turned:
        return None
    second, bias = array(node.inputs[1]), array(node.inputs[2]) if len(node.inputs) > 2 else None
    if second is None or (len(node.inputs) > 2 and bias is None):
        return None
    rest = (constant(op, second * alpha), *(() if bias is None else (constant(op, bias * beta),)))
    return op.Gemm(op.Transpose(x, perm=[1, 0]) if turned else x, *rest, transB=attribute(node, "transB", 0))


def _gemm_with_matrix(op: Any, x: Any, out: Any) -> Any:
    """A third input that is a matrix is added behind."""
    node = out.producer()
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    sizes = shape(bias)
    if sizes is None or len(sizes) < 2 or sizes[0] == 1 or attribute(node, "beta", 1.0) != 1.0:
        return None
    kept = {name: attribute(node, name, default) for name, default in (("alpha", 1.0), ("transA", 0), ("transB", 0))}
    return op.Add(op.Gemm(x, node.inputs[1], **kept), bias)


def _outer_product(op: Any, x: Any, out: Any) -> Any:
    """A sum of one product is that product, with sizes of 1 spread out."""
    node, sizes, second = out.producer(), shape(x), shape(out.producer().inputs[1])
    factors = [attribute(node, name, default) for name, default in (("alpha", 1.0), ("beta", 1.0), ("transA", 0))]
    if sizes is None or second is None or len(second) < 2 or factors != [1.0, 1.0, 0]:
        return None
    turned, bias = attribute(node, "transB", 0), node.inputs[2] if len(node.inputs) > 2 else None
    if sizes[-1] != 1 or second[-1 if turned else -2] != 1:
        return None
    product = op.Mul(x, op.Transpose(node.inputs[1], perm=[1, 0]) if turned else node.inputs[1])
    return product if bias is None else op.Add(product, bias)


def _reciprocal(op: Any, x: Any, **_: Any) -> Any:
    return op.Div(constant(op, 1.0), x)


def _tan(op: Any, x: Any, **_: Any) -> Any:
    return op.Div(op.Sin(x), op.Cos(x))


def _celu(op: Any, x: Any, out: Any) -> Any:
    alpha = attribute(out.producer(), "alpha", 1.0)
    return op.Elu(x, alpha=1.0) if alpha == 1.0 else op.Mul(op.Elu(op.Mul(x, constant(op, 1 / alpha)), alpha=1.0), constant(op, alpha))


def _selu(op: Any, x: Any, out: Any) -> Any:
    node = out.producer()
    alpha, gamma = attribute(node, "alpha", 1.6732632), attribute(node, "gamma", 1.0507010)
    return op.Mul(op.Elu(x, alpha=alpha), constant(op, gamma))


def _softsign(op: Any, x: Any, **_: Any) -> Any:
    return op.Div(x, op.Add(op.Abs(x), constant(op, 1.0)))


def _prelu(op: Any, x: Any, out: Any) -> Any:
    """The two sides of zero apart, where there is more than one slope."""
    slope = out.producer().inputs[1]
    sizes = shape(slope)
    return None if not sizes or max(sizes) == 1 else op.Sub(op.Relu(x), op.Mul(slope, op.Relu(op.Neg(x))))


def _thresholded_relu(op: Any, x: Any, out: Any) -> Any:
    alpha = constant(op, attribute(out.producer(), "alpha", 1.0))
    return op.Where(op.Greater(x, alpha), x, constant(op, 0.0))


def _negative_indices(op: Any, x: Any, out: Any) -> Any:
    import numpy as np

    node = out.producer()
    indices, sizes, axis = array(node.inputs[1]), shape(x), attribute(node, "axis", 0)
    if indices is None or sizes is None or not (indices < 0).any():
        return None
    return op.Gather(x, constant(op, np.where(indices < 0, indices + sizes[axis], indices), str(indices.dtype)), axis=axis)


def _pow(op: Any, x: Any, out: Any) -> Any:
    exponent = out.producer().inputs[1]
    known = {1.0: lambda: op.Identity(x), 2.0: lambda: op.Mul(x, x), 0.5: lambda: op.Sqrt(x), 3.0: lambda: op.Mul(op.Mul(x, x), x)}
    value, values = number(exponent), array(exponent)
    if value in known:
        return known[value]()
    return None if values is None or values.dtype == "float32" else op.Pow(x, constant(op, values))


def _acos(op: Any, x: Any, **_: Any) -> Any:
    return op.Sub(constant(op, math.pi / 2), op.Asin(x))


def _hyperbolic(kind: str) -> Callable[..., Any]:
    """Half the sum or difference of the exponentials."""

    def replace(op: Any, x: Any, **_: Any) -> Any:
        return op.Mul(getattr(op, kind)(op.Exp(x), op.Exp(op.Neg(x))), constant(op, 0.5))

    return replace


def _asinh(op: Any, x: Any, **_: Any) -> Any:
    """Odd: by the magnitude, so that nothing cancels out."""
    size = op.Abs(x)
    return op.Mul(op.Sign(x), op.Log(op.Add(size, op.Sqrt(op.Add(op.Mul(x, x), constant(op, 1.0))))))


def _acosh(op: Any, x: Any, **_: Any) -> Any:
    return op.Log(op.Add(x, op.Sqrt(op.Sub(op.Mul(x, x), constant(op, 1.0)))))


def _atanh(op: Any, x: Any, **_: Any) -> Any:
    one = constant(op, 1.0)
    return op.Mul(op.Log(op.Div(op.Add(one, x), op.Sub(one, x))), constant(op, 0.5))


def _l1_normalization(op: Any, x: Any, out: Any) -> Any:
    node = out.producer()
    if attribute(node, "p", 2) != 1:
        return None
    return op.Div(x, op.ReduceSum(op.Abs(x), constant(op, [attribute(node, "axis", -1)], "int64"), keepdims=1))


def _idle(op: Any, x: Any, out: Any) -> Any:
    """A reduction over no axes."""
    node = out.producer()
    return op.Identity(x) if axes(node) == () and attribute(node, "noop_with_empty_axes", 0) else None


def refusing(name: str, kind: str, gives: tuple[str, ...], replace: Callable[..., Any], reason: str = "") -> Rule:
    """A rule that puts `replace(op, x, out)` in the place of each `kind` that the target refuses."""
    return Rule(name, reason or f"the target has no {kind} of this form", (kind,), gives, (_any(kind),), replace, splits=True, commutes=False)


RULES = (
    refusing("reduce-l1", "ReduceL1", ("Abs", "ReduceSum"), _reduce_l1),
    refusing("reduce-l2", "ReduceL2", ("Mul", "ReduceSum", "Sqrt"), _reduce_l2),
    refusing("reduce-sum-square", "ReduceSumSquare", ("Mul", "ReduceSum"), _reduce_sum_square),
    refusing("reduce-log-sum", "ReduceLogSum", ("ReduceSum", "Log"), _reduce_log_sum),
    refusing("reduce-log-sum-exp", "ReduceLogSumExp", ("ReduceMax", "Sub", "Exp", "ReduceSum", "Log", "Add"), _reduce_log_sum_exp),
    *(
        Rule("reduce-axes", "a reduction over everything names its axes", (kind,), (kind,), (_any(kind),), _all_axes(kind), commutes=False)
        for kind in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
    ),
    refusing("max-pairwise", "Max", ("Max",), _pairwise("Max"), "the target takes two inputs"),
    refusing("min-pairwise", "Min", ("Min",), _pairwise("Min"), "the target takes two inputs"),
    refusing("sum-pairwise", "Sum", ("Add",), _pairwise("Add"), "the target takes two inputs"),
    refusing("mean-pairwise", "Mean", ("Add", "Mul"), _mean, "the target takes two inputs"),
    refusing("gemm-factors", "Gemm", ("Gemm", "Transpose"), _gemm, "the target takes no factors"),
    refusing("gemm-matrix", "Gemm", ("Gemm", "Add"), _gemm_with_matrix, "the target takes one value an output"),
    *(
        refusing("product-of-one", kind, ("Mul", "Add", "Transpose"), _outer_product, "a sum of one product is a product")
        for kind in ("MatMul", "Gemm")
    ),
    refusing("reciprocal", "Reciprocal", ("Div",), _reciprocal),
    refusing("tan", "Tan", ("Sin", "Cos", "Div"), _tan),
    refusing("celu", "Celu", ("Elu", "Mul"), _celu),
    refusing("selu", "Selu", ("Elu", "Mul"), _selu),
    refusing("softsign", "Softsign", ("Abs", "Add", "Div"), _softsign),
    refusing("prelu", "PRelu", ("Relu", "Neg", "Mul", "Sub"), _prelu),
    refusing("thresholded-relu", "ThresholdedRelu", ("Greater", "Where"), _thresholded_relu),
    Rule(
        "gather-indices",
        "indices below zero count from the end, and targets document the others only",
        ("Gather",),
        ("Gather",),
        (_any("Gather"),),
        _negative_indices,
        commutes=False,
    ),
    refusing("pow", "Pow", ("Mul", "Sqrt", "Pow"), _pow),
    refusing("acos", "Acos", ("Asin", "Sub"), _acos),
    refusing("sinh", "Sinh", ("Exp", "Neg", "Sub", "Mul"), _hyperbolic("Sub")),
    refusing("cosh", "Cosh", ("Exp", "Neg", "Add", "Mul"), _hyperbolic("Add")),
    refusing("asinh", "Asinh", ("Abs", "Sign", "Log", "Sqrt", "Add", "Mul"), _asinh),
    refusing("acosh", "Acosh", ("Log", "Sqrt", "Sub", "Add", "Mul"), _acosh),
    refusing("atanh", "Atanh", ("Log", "Div", "Sub", "Add", "Mul"), _atanh),
    refusing("l1-normalization", "LpNormalization", ("Abs", "ReduceSum", "Div"), _l1_normalization, "the target divides by the root of squares only"),
    refusing("reduce-nothing", "ReduceSum", ("Identity",), _idle, "it reduces over no axes"),
)
