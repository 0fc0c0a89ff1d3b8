"""Operators that a target refuses, as operators that compute the same."""

from __future__ import annotations

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
    exponent = number(out.producer().inputs[1])
    return {1.0: lambda: op.Identity(x), 2.0: lambda: op.Mul(x, x), 0.5: lambda: op.Sqrt(x)}.get(exponent or 0.0, lambda: None)()


def _split(name: str, kind: str, gives: tuple[str, ...], replace: Callable[..., Any], reason: str = "") -> Rule:
    return Rule(name, reason or f"the target has no {kind} of this form", (kind,), gives, (_any(kind),), replace, splits=True, commutes=False)


RULES = (
    _split("reduce-l1", "ReduceL1", ("Abs", "ReduceSum"), _reduce_l1),
    _split("reduce-l2", "ReduceL2", ("Mul", "ReduceSum", "Sqrt"), _reduce_l2),
    _split("reduce-sum-square", "ReduceSumSquare", ("Mul", "ReduceSum"), _reduce_sum_square),
    _split("reduce-log-sum", "ReduceLogSum", ("ReduceSum", "Log"), _reduce_log_sum),
    _split("reduce-log-sum-exp", "ReduceLogSumExp", ("ReduceMax", "Sub", "Exp", "ReduceSum", "Log", "Add"), _reduce_log_sum_exp),
    *(Rule("reduce-axes", "a reduction over everything names its axes", (kind,), (kind,), (_any(kind),), _all_axes(kind), commutes=False)
      for kind in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")),
    _split("max-pairwise", "Max", ("Max",), _pairwise("Max"), "the target takes two inputs"),
    _split("min-pairwise", "Min", ("Min",), _pairwise("Min"), "the target takes two inputs"),
    _split("sum-pairwise", "Sum", ("Add",), _pairwise("Add"), "the target takes two inputs"),
    _split("mean-pairwise", "Mean", ("Add", "Mul"), _mean, "the target takes two inputs"),
    _split("gemm-factors", "Gemm", ("Gemm", "Transpose"), _gemm, "the target takes no factors"),
    _split("gemm-matrix", "Gemm", ("Gemm", "Add"), _gemm_with_matrix, "the target takes one value an output"),
    _split("reciprocal", "Reciprocal", ("Div",), _reciprocal),
    _split("tan", "Tan", ("Sin", "Cos", "Div"), _tan),
    _split("celu", "Celu", ("Elu", "Mul"), _celu),
    _split("selu", "Selu", ("Elu", "Mul"), _selu),
    _split("softsign", "Softsign", ("Abs", "Add", "Div"), _softsign),
    _split("prelu", "PRelu", ("Relu", "Neg", "Mul", "Sub"), _prelu),
    _split("thresholded-relu", "ThresholdedRelu", ("Greater", "Where"), _thresholded_relu),
    Rule("gather-indices", "indices below zero count from the end, and targets document the others only", ("Gather",), ("Gather",), (_any("Gather"),),
         _negative_indices, commutes=False),
    _split("pow", "Pow", ("Mul", "Sqrt"), _pow),
)
