"""NNAPI through LiteRT's delegate, by feature level: what the table cannot say. Source: LiteRT `tflite/delegates/nnapi/nnapi_delegate.cc`
(Validate); a driver may still refuse what passes here, and none was asked.
"""

from __future__ import annotations

from collections.abc import Callable

from edgekit.graph import GraphTensor, Operator
from edgekit.opset import rules
from edgekit.opset.view import View, data_inputs

FL3, FL4, FL6 = 3, 4, 6
INTEGERS = frozenset(("int8", "uint8"))


def refusal(view: View, operator: Operator) -> str | None:
    """Why the NNAPI delegate leaves `operator` to the CPU at `view.level`, or None."""
    if operator.type == "COS":
        return "the delegate of this revision maps COS to SIN"
    if operator.type == "DENSIFY":
        return None if view.is_static(operator, 0) and view.level >= FL4 else "only a constant is taken, from feature level 4"
    reason = rules.by_table(view, operator) or _int64(view, operator)
    extra = _EXTRA.get(operator.type)
    return reason or (extra(view, operator) if extra else None)


def _int64(view: View, operator: Operator) -> str | None:
    live = [view.graph.tensors[i] for i in (*data_inputs(operator), *operator.outputs)]
    return next((f"int64 tensors ({t.name}) are taken as constants only" for t in live if t.dtype == "int64" and not t.constant), None)


def _product(view: View, operator: Operator) -> str | None:
    """Convolutions and FULLY_CONNECTED."""
    data, weights, out = view.data(operator)[0], view.tensor(operator, 1), view.output(operator)
    if weights is None:
        return "it has no weights"
    if data.dtype == "float32" and weights.dtype in INTEGERS:
        return "integer weights beside float activations are not taken"
    if len(weights.scale) > 1 and view.level < FL3:
        return "scales per channel need feature level 3"
    if view.level < FL3 and data.scale and weights.scale and out.scale and data.scale[0] * weights.scale[0] >= out.scale[0]:
        return "below feature level 3 the output scale must be larger than input scale times weight scale"
    return None


def _convolution(view: View, operator: Operator) -> str | None:
    attributes, data, weights = operator.attributes, view.data(operator)[0], view.tensor(operator, 1)
    if view.level < FL3 and max(attributes.get("dilation_h_factor", 1), attributes.get("dilation_w_factor", 1)) > 1:
        return "dilation needs feature level 3"
    grouped = operator.type == "CONV_2D" and weights is not None and len(weights.shape) == 4 and weights.shape[3] != data.shape[3]
    return "grouped convolution needs feature level 3" if grouped and view.level < FL3 else _product(view, operator)


def _fully_connected(view: View, operator: Operator) -> str | None:
    if operator.attributes.get("keep_num_dims") and view.level < FL4:
        return "keeping the number of dimensions needs feature level 4"
    return "int16 outputs are not taken" if view.output(operator).dtype == "int16" else _product(view, operator)


def _average_pool(view: View, operator: Operator) -> str | None:
    window = operator.attributes.get("filter_height", 1) * operator.attributes.get("filter_width", 1)
    quantized = view.data(operator)[0].dtype in INTEGERS
    return f"a quantized window of {window} elements, and 256 is the most" if quantized and window > 256 else None


def _integer_arithmetic(view: View, operator: Operator) -> str | None:
    fused = operator.attributes.get("fused_activation_function", "NONE")
    return f"int32 with the fused activation {fused}" if view.data(operator)[0].dtype == "int32" and fused != "NONE" else None


def _concatenation(view: View, operator: Operator) -> str | None:
    scales = {(t.scale, t.zero_point) for t in view.data(operator) if t.scale}
    return "below feature level 3 all scales and zero points must be equal" if view.level < FL3 and len(scales) > 1 else None


def _dequantize(view: View, operator: Operator) -> str | None:
    source = view.graph.tensors[operator.inputs[0]]
    if source.dtype == "float16":
        return "float16 weights are not unpacked by the delegate" if source.constant or view.level < FL4 else None
    return "int8 with a zero point needs feature level 4" if source.dtype == "int8" and view.level == FL3 and any(source.zero_point) else None


def _quantize(view: View, operator: Operator) -> str | None:
    return "int8 outputs need feature level 4" if view.output(operator).dtype == "int8" and view.level < FL4 else None


def _reduce(view: View, operator: Operator) -> str | None:
    return "a scalar output is not taken" if not view.output(operator).shape else None


def _resize(view: View, operator: Operator) -> str | None:
    flags = operator.attributes.get("align_corners") or operator.attributes.get("half_pixel_centers")
    shape = view.output(operator).shape
    if view.level < FL3 and len(shape) == 4 and shape[1] != shape[2]:
        return "below feature level 3 the output must be square"
    return "align corners and half pixel centers need feature level 4" if flags and view.level < FL4 else None


def _softmax(view: View, operator: Operator) -> str | None:
    rank = len(view.data(operator)[0].shape)
    return f"rank {rank} needs feature level 3" if view.level < FL3 and rank not in (2, 4) else None


def _arg(view: View, operator: Operator) -> str | None:
    return "outputs must be int32" if view.output(operator).dtype != "int32" else None


def _batch_matmul(view: View, operator: Operator) -> str | None:
    first, second = (view.graph.tensors[i].shape for i in operator.inputs[:2])
    return "its batches are broadcast" if first[:-2] != second[:-2] else None


def _gather(view: View, operator: Operator) -> str | None:
    indices = view.tensor(operator, 1)
    return "indices must be int32 with at least one dimension" if indices and (indices.dtype != "int32" or not indices.shape) else None


def _last_axis(view: View, operator: Operator) -> str | None:
    tensor: GraphTensor = view.output(operator) if operator.type == "PACK" else view.graph.tensors[operator.inputs[0]]
    axis = operator.attributes.get("axis", 0) % max(len(tensor.shape), 1)
    native = operator.type == "PACK" and view.level >= FL6
    return "the last axis is not taken" if axis == len(tensor.shape) - 1 and not native else None


def _select(view: View, operator: Operator) -> str | None:
    return "the condition is broadcast" if view.graph.tensors[operator.inputs[0]].shape != view.graph.tensors[operator.inputs[1]].shape else None


def _crops(_view: View, operator: Operator) -> str | None:
    return "crops must be zero" if any(operator.attributes.get("constant_inputs", {}).get(2, (1,))) else None


def _squeeze(view: View, operator: Operator) -> str | None:
    return "the dimensions to squeeze must be named at feature level 2" if view.level == 2 and not operator.attributes.get("squeeze_dims") else None


def _parameters(view: View, operator: Operator) -> str | None:
    others = [view.tensor(operator, position) for position in range(1, len(operator.inputs))]
    return next((f"{t.name} must be int32" for t in others if t and t.dtype != "int32"), None)


def _scalar_operand(view: View, operator: Operator) -> str | None:
    live = [i for i in operator.inputs if not view.graph.tensors[i].shape and i not in view.static]
    return "a scalar operand must be a constant" if live else None


def _l2_normalization(view: View, operator: Operator) -> str | None:
    return "below feature level 3 four dimensions are taken" if view.level < FL3 and len(view.data(operator)[0].shape) != 4 else None


_EXTRA: dict[str, Callable[[View, Operator], str | None]] = {
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _convolution,
    "TRANSPOSE_CONV": _product,
    "FULLY_CONNECTED": _fully_connected,
    "AVERAGE_POOL_2D": _average_pool,
    "CONCATENATION": _concatenation,
    "DEQUANTIZE": _dequantize,
    "QUANTIZE": _quantize,
    "SOFTMAX": _softmax,
    "BATCH_MATMUL": _batch_matmul,
    "BATCH_TO_SPACE_ND": _crops,
    "EXPAND_DIMS": _parameters,
    "SLICE": _parameters,
    "TILE": _parameters,
    "SPLIT_V": _parameters,
    "GATHER": _gather,
    "SELECT": _select,
    "SQUEEZE": _squeeze,
    "L2_NORMALIZATION": _l2_normalization,
}
_EXTRA |= dict.fromkeys(("ADD", "MUL", "SUB"), _integer_arithmetic) | dict.fromkeys(("ARG_MAX", "ARG_MIN"), _arg)
_EXTRA |= dict.fromkeys(("PACK", "UNPACK"), _last_axis) | dict.fromkeys(("MAXIMUM", "MINIMUM"), _scalar_operand)
_EXTRA |= dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), _resize)
_EXTRA |= dict.fromkeys(("MEAN", "SUM", "REDUCE_ANY", "REDUCE_PROD", "FILL"), _reduce)
