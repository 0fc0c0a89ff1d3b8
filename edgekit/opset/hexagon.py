"""Hexagon's HTP through QDQ ONNX: what the table cannot say. Source: single-operator models given to the HTP simulator (QNN API 2.40)."""

from __future__ import annotations

from collections.abc import Callable

from edgekit.graph import Operator
from edgekit.opset import rules
from edgekit.opset.view import View

NOT_FINALIZED = frozenset(("GRU", "InstanceNormalization", "LSTM", "RoiAlign", "ScatterND", "Selu", "ThresholdedRelu"))
"""Documented for the provider and taken by its checks, but the simulator could not finalize a small graph with one."""

NEAREST = {("asymmetric", "floor"), ("half_pixel", "round_prefer_ceil"), ("align_corners", "round_prefer_ceil")}
"""Forms of a nearest Resize that the simulator computes as ONNX defines them."""


def refusal(view: View, operator: Operator) -> str | None:
    """Why the HTP refuses `operator`, or takes it and computes something else; None where it is right."""
    reason = wrong(view, operator)
    if reason or operator.attributes.get("confirmed"):
        return reason  # the simulator took this very graph
    if operator.type in NOT_FINALIZED:
        return f"{operator.type} is documented, but a small graph with it did not finalize on the simulator"
    extra = _EXTRA.get(operator.type)
    return rules.by_table(view, operator) or (extra(view, operator) if extra else None)


def wrong(view: View, operator: Operator) -> str | None:
    """How the simulator takes `operator` and computes something else, or ends; None where neither was seen."""
    found = _WRONG.get(operator.type)
    return found(view, operator) if found else None


def _resize(view: View, operator: Operator) -> str | None:
    attributes, data, out = operator.attributes, view.data(operator)[0].shape, view.output(operator).shape
    mode, place = attributes.get("mode", "nearest"), attributes.get("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest":
        how = attributes.get("nearest_mode", "round_prefer_floor")
        return None if (place, how) in NEAREST else f"it takes other neighbors than ONNX defines for {place} and {how}"
    scales = attributes.get("constant_inputs", {}).get(2, ())
    if place != "align_corners" and any(abs(s * d - round(s * d)) > 1e-4 for s, d in zip(scales, data, strict=False)):
        return "it takes the ratio of the sizes, not the scales given, and they differ here"
    if place == "pytorch_half_pixel" and 1 in out[2:]:
        return "it does not know pytorch_half_pixel's rule for a length of 1"
    return "its cubic form is wrong on a single channel" if mode == "cubic" and data[1:2] == (1,) else None


def _average_pool(_view: View, operator: Operator) -> str | None:
    kernel, pads = operator.attributes.get("kernel_shape", []), operator.attributes.get("pads", [])
    if operator.attributes.get("ceil_mode", 0):
        return "with ceil_mode it divides by another count than ONNX"
    if not operator.attributes.get("count_include_pad", 0) and any(2 * p > k for p, k in zip(pads, [*kernel, *kernel], strict=False)):
        return "padding of more than half the window, left out of the count, ends the simulator"
    return None


def _conv_transpose(view: View, operator: Operator) -> str | None:
    """Whether rows are given out that no input reaches: by output padding (or an output shape) beyond the padding cut off at the end."""
    data, weight, out = view.data(operator)[0].shape[2:], view.tensor(operator, 1), view.output(operator).shape[2:]
    rank, attributes = len(data), operator.attributes
    strides, dilations, pads = (attributes.get(n, [d] * c) for n, d, c in (("strides", 1, rank), ("dilations", 1, rank), ("pads", 0, 2 * rank)))
    kernel = weight.shape[2:] if weight else ()
    reach = [(d - 1) * s + (k - 1) * e + 1 - p for d, s, k, e, p in zip(data, strides, kernel, dilations, pads, strict=False)]
    beyond = any(o > r for o, r in zip(out, reach, strict=False))
    return "the output reaches further than the kernel does, and comes back undefined there" if beyond else None


def _lp_pool(_view: View, operator: Operator) -> str | None:
    padded = any(operator.attributes.get("pads", ())) or operator.attributes.get("auto_pad", "NOTSET").startswith("SAME")
    return "with padding it is wrong, or ends the simulator" if padded else None


def _scatter(_view: View, _operator: Operator) -> str | None:
    return "it scatters to other places than ONNX"


def _reciprocal(_view: View, _operator: Operator) -> str | None:
    return "values below 1 come back too small by the largest of them: write it as a division"


def _softmax(view: View, operator: Operator) -> str | None:
    """A constant factor goes into the Softmax behind it, and through a ReLU between them as well, which is wrong."""
    made = {index: o for o in view.graph.operators for index in o.outputs}
    relu = made.get(operator.inputs[0])
    factor = made.get(relu.inputs[0]) if relu is not None and relu.type == "Relu" else None
    scaled = factor is not None and factor.type in ("Mul", "Div") and any(view.graph.tensors[i].constant for i in factor.inputs if i >= 0)
    return "the constant factor before the ReLU before it is applied wrongly" if scaled else None


def _tan(_view: View, _operator: Operator) -> str | None:
    return "it is off by several percent near its poles: write it as sine over cosine"


def _gemm(view: View, operator: Operator) -> str | None:
    bias, attributes = view.tensor(operator, 2), operator.attributes
    if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0 or attributes.get("transA", 0):
        return "it takes no factors and no transposed first input"
    matrix = bias is not None and len(bias.shape) > 1 and bias.shape[0] != 1
    return "its third input is a matrix, and it takes one value an output" if matrix else None


def _last_axis(view: View, operator: Operator) -> str | None:
    axis, rank = operator.attributes.get("axis", -1), len(view.data(operator)[0].shape)
    return None if axis in (-1, rank - 1) else f"axis {axis}, and it takes the last one only"


def _layer_norm(view: View, operator: Operator) -> str | None:
    if len(operator.outputs) > 1:
        return "its mean and deviation are outputs too, and it gives the normalized values only"
    without = "it has no bias, and 16-bit ones need one" if view.tensor(operator, 2) is None else None
    return _last_axis(view, operator) or without


def _mish(_view: View, _operator: Operator) -> str | None:
    return "it is documented, but a graph with it is taken in part only: write it with Softplus and Tanh"


def _lp_normalization(_view: View, operator: Operator) -> str | None:
    return None if operator.attributes.get("p", 2) == 2 else "it divides by the root of the squares only"


def _pad(_view: View, operator: Operator) -> str | None:
    return "it takes padding of all axes, not of some" if len(operator.inputs) > 3 and operator.inputs[3] >= 0 else None


def _pow(view: View, operator: Operator) -> str | None:
    types = {tensor.dtype for tensor in (view.tensor(operator, 0), view.tensor(operator, 1)) if tensor is not None}
    return f"its tensors are of different types ({', '.join(sorted(types))})" if len(types) > 1 else None


def _several(_view: View, operator: Operator) -> str | None:
    return "it has one input, and it takes two" if len(operator.inputs) == 1 else None


def _reduce(_view: View, operator: Operator) -> str | None:
    over = operator.attributes.get("constant_inputs", {}).get(1) or operator.attributes.get("axes")
    return "it reduces over no axes" if operator.attributes.get("noop_with_empty_axes", 0) and not over else None


def _dilated(_view: View, operator: Operator) -> str | None:
    return "it takes no dilated window" if any(size != 1 for size in operator.attributes.get("dilations", ())) else None


def _max_pool(view: View, operator: Operator) -> str | None:
    if len(operator.outputs) > 1:
        return "it gives no indices"
    volume = "it takes windows of two dimensions" if len(view.data(operator)[0].shape) > 4 else None
    return volume or _dilated(view, operator)


def _transposed(_view: View, operator: Operator) -> str | None:
    dilated = any(size != 1 for size in operator.attributes.get("dilations", ()))
    return "it takes no dilated kernel" if dilated else None


def _interpolation(view: View, operator: Operator) -> str | None:
    attributes, before, after = operator.attributes, view.data(operator)[0].shape, view.output(operator).shape
    if len(before) == len(after) and before[:-2] != after[:-2]:
        return "it resizes rows and columns only, not channels or samples"
    if attributes.get("antialias", 0):
        return "it has no antialiasing"
    some = attributes.get("axes") or attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch"
    return "it takes sizes of all axes" if some else None


def _one_product(view: View, operator: Operator) -> str | None:
    sizes = view.data(operator)[0].shape
    return "a sum of one product each never ends on the simulator" if sizes[-1:] == (1,) and not operator.attributes.get("transA", 0) else None


def _batch_norm(_view: View, _operator: Operator) -> str | None:
    return "standing alone it needs 8-bit parameters: write it as a product and a sum"


def _first_index(_view: View, operator: Operator) -> str | None:
    return "of equal values it gives the first: leave select_last_index out" if operator.attributes.get("select_last_index", 0) else None


def _one_hot(_view: View, _operator: Operator) -> str | None:
    return "no form of it was taken: compare the indices with a range (Equal), and choose (Where)"


def _lp_form(_view: View, operator: Operator) -> str | None:
    attributes = operator.attributes
    odd = attributes.get("p", 2) not in (1, 2) or attributes.get("ceil_mode", 0) or any(size != 1 for size in attributes.get("dilations", ()))
    return "it takes p = 1 or 2, and neither dilations nor ceil_mode: write powers, an average pool and a root" if odd else None


def _prelu(view: View, operator: Operator) -> str | None:
    slope = view.tensor(operator, 1)
    many = slope is not None and any(size != 1 for size in slope.shape)
    return "a slope for each channel did not finalize with 16 bits" if many else None


_WRONG: dict[str, Callable[[View, Operator], str | None]] = {
    "AveragePool": _average_pool,
    "ConvTranspose": _conv_transpose,
    "Gemm": _one_product,
    "MatMul": _one_product,
    "LpPool": _lp_pool,
    "Reciprocal": _reciprocal,
    "Resize": _resize,
    "Scatter": _scatter,
    "ScatterElements": _scatter,
    "Softmax": _softmax,
    "Tan": _tan,
}
_EXTRA: dict[str, Callable[[View, Operator], str | None]] = {
    "ArgMax": _first_index,
    "ArgMin": _first_index,
    "AveragePool": _dilated,
    "BatchNormalization": _batch_norm,
    "ConvTranspose": _transposed,
    "Gemm": _gemm,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_normalization,
    "LpPool": _lp_form,
    "Max": _several,
    "MaxPool": _max_pool,
    "Mean": _several,
    "Min": _several,
    "Mish": _mish,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Pow": _pow,
    "RMSNormalization": _last_axis,
    "ReduceSum": _reduce,
    "Resize": _interpolation,
    "Sum": _several,
    "PRelu": _prelu,
}
