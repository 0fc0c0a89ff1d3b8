"""XNNPACK in LiteRT, float and int8: what the table cannot say. Source: `tflite/delegates/xnnpack/xnnpack_delegate.cc`, and runs of it."""

from __future__ import annotations

from collections.abc import Callable

from edgekit.graph import Operator
from edgekit.opset import rules
from edgekit.opset.view import View


def refusal(view: View, operator: Operator) -> str | None:
    """Why XNNPACK leaves `operator` to the built-in kernels, or None."""
    if operator.type in ("DEQUANTIZE", "DENSIFY") and view.is_static(operator, 0):
        return None  # unpacked once, when the model is loaded
    reason = rules.by_table(view, operator)
    extra = _EXTRA.get(operator.type)
    return reason or (extra(view, operator) if extra else None)


def _pool(_view: View, operator: Operator) -> str | None:
    attributes = operator.attributes
    for side in ("h", "w"):
        size, stride = attributes.get(f"filter_{'height' if side == 'h' else 'width'}", 1), attributes.get(f"stride_{side}", 1)
        if stride > size:
            return f"stride {stride} is larger than the window {size}"
    return None


def _strided_slice(_view: View, operator: Operator) -> str | None:
    strides = operator.attributes.get("constant_inputs", {}).get(3, ())
    return f"strides {list(strides)}, and it takes 1 only" if any(s != 1 for s in strides) else None


def _pad(_view: View, operator: Operator) -> str | None:
    return "negative padding" if any(p < 0 for p in operator.attributes.get("constant_inputs", {}).get(1, ())) else None


def _fully_connected(view: View, operator: Operator) -> str | None:
    weights = view.tensor(operator, 1)
    return f"weights of rank {len(weights.shape)}, and it takes 2" if weights and len(weights.shape) != 2 else None


def _leaky_relu(view: View, operator: Operator) -> str | None:
    alpha, source, out = operator.attributes.get("alpha", 0.0), view.data(operator)[0], view.output(operator)
    if not source.scale or not out.scale:
        return None
    slope = alpha * source.scale[0] / out.scale[0]
    within = -127.99609375 <= slope <= -0.00390625 or 0.00390625 <= slope <= 128
    return None if within else f"the negative slope in output steps is {slope:.6g}, too small or too large for 8 bits"


def _quantize(view: View, operator: Operator) -> str | None:
    source, out = view.tensor(operator, 0), view.output(operator)
    if source and source.dtype in rules.QUANTIZED and source.dtype != out.dtype:
        return f"requantizes {source.dtype} to {out.dtype}, and it takes one type only"
    return _per_tensor(view, operator) if out.dtype in ("int8", "uint8") else f"gives out {out.dtype}, and it makes int8 and uint8 only"


def _per_tensor(view: View, operator: Operator) -> str | None:
    tensors = [view.graph.tensors[i] for i in (operator.inputs[0], operator.outputs[0])]
    return "scales per channel on an activation" if any(len(t.scale) > 1 for t in tensors) else None


_EXTRA: dict[str, Callable[[View, Operator], str | None]] = {
    "AVERAGE_POOL_2D": _pool,
    "MAX_POOL_2D": _pool,
    "DEPTH_TO_SPACE": rules.block,
    "SPACE_TO_DEPTH": rules.block,
    "STRIDED_SLICE": _strided_slice,
    "PAD": _pad,
    "FULLY_CONNECTED": _fully_connected,
    "LEAKY_RELU": _leaky_relu,
    "QUANTIZE": _quantize,
    "DEQUANTIZE": _per_tensor,
}
