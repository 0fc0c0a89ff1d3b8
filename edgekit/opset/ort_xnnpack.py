"""ONNX Runtime's XNNPACK provider: what the table cannot say. Sources: the provider's support checks, named in `targets/ops/ort_xnnpack.json`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgekit.graph import Operator
from edgekit.opset import rules
from edgekit.opset.view import View

QUANTIZED = frozenset(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "Softmax", "Resize"))
"""Operators that are taken together with the DequantizeLinear before and the QuantizeLinear behind them."""

FUSES_ACTIVATION = frozenset(("Conv", "MaxPool", "AveragePool"))


def refusal(view: View, operator: Operator) -> str | None:
    """Why the XNNPACK provider leaves `operator` to the CPU provider, or None."""
    if operator.type in ("QuantizeLinear", "DequantizeLinear"):
        return "it belongs to the operator beside it, or stays alone"
    reason = rules.by_table(view, operator)
    extra = _EXTRA.get(operator.type)
    return reason or _types(view, operator) or (extra(view, operator) if extra else None)


def _types(view: View, operator: Operator) -> str | None:
    """Types of a float operator, or of one between DequantizeLinear and QuantizeLinear."""
    stored, outputs = operator.attributes.get("stored_inputs", ("",)), operator.attributes.get("stored_outputs", ("",))
    if not stored[0] and not any(outputs):
        found = view.data(operator)[0].dtype
        return None if found == "float32" else f"{found} tensors are not taken, only float32"
    if operator.type not in QUANTIZED or not stored[0] or not all(outputs):
        return "between DequantizeLinear and QuantizeLinear it is left to the CPU provider's integer kernels"
    if operator.type in ("Conv", "ConvTranspose") and len(stored) > 1 and stored[1] != stored[0]:
        return f"{stored[0]} activations with {stored[1] or 'float32'} weights are not taken: both must be of one type"
    if operator.type in ("AveragePool", "Softmax") and stored[0] != "uint8":
        return f"{stored[0]} activations are not taken, only uint8"
    return "16-bit activations are not taken" if "16" in stored[0] else None


def _conv(view: View, operator: Operator) -> str | None:
    weights = view.tensor(operator, 1)
    wide = 1 in operator.attributes.get("channel_inputs", ())
    if operator.type == "ConvTranspose" and wide:
        return "transposed convolutions take one scale for all weights"
    if operator.attributes.get("auto_pad") == "SAME_LOWER":
        return "padding of SAME_LOWER is not taken"
    return f"weights of rank {len(weights.shape)}, and it takes 3 or 4" if weights and len(weights.shape) not in (3, 4) else None


def _gemm(view: View, operator: Operator) -> str | None:
    bias = view.tensor(operator, 2)
    matrix = bias is not None and len(bias.shape) > 1 and bias.shape[0] != 1
    return "its third input is a matrix, and it takes one value an output" if matrix else None


def _pool(_view: View, operator: Operator) -> str | None:
    kernel = operator.attributes.get("kernel_shape", [])
    if len(kernel) != 2 or set(kernel) == {1}:
        return f"window {kernel}, and it takes two dimensions larger than 1 x 1"
    padded = bool(operator.attributes.get("count_include_pad", 0))
    quantized = any(operator.attributes.get("stored_outputs", ()))
    if operator.type == "AveragePool" and padded != quantized:
        return "8-bit averages count the padding, and float ones do not" if quantized else "averages that count the padding are not taken"
    return None


def _softmax(view: View, operator: Operator) -> str | None:
    axis, rank = operator.attributes.get("axis", -1), len(view.data(operator)[0].shape)
    return None if operator.version < 13 or axis in (-1, rank - 1) else f"axis {axis}, and it takes the last one only"


def _resize(view: View, operator: Operator) -> str | None:
    mode = operator.attributes.get("mode", "nearest")
    if mode != "linear":
        return f"mode {mode}, and it takes linear only"
    if not (view.tensor(operator, 2) or view.tensor(operator, 3)) or not all(view.is_static(operator, position) for position in (2, 3)):
        return "its size is computed at run time, and must be a constant"
    source, out = view.data(operator)[0].shape, view.output(operator).shape
    if len(source) == len(out) == 4 and (source[1] != out[1] or any(o < s and s % o for s, o in zip(source[2:], out[2:], strict=True) if o > 0)):
        return "it makes channels another number, or shrinks by a fraction"
    return None


def _matmul(view: View, operator: Operator) -> str | None:
    left, right = view.tensor(operator, 0), view.tensor(operator, 1)
    ranks = [len(t.shape) for t in (left, right) if t]
    if len(ranks) == 2 and (ranks[1] > 2 or ranks[0] < ranks[1]):
        return f"ranks {ranks[0]} and {ranks[1]}, and it takes a matrix or a batch of them times a constant matrix"
    return None


def _activation(view: View, operator: Operator) -> str | None:
    """Taken only as part of the operator before it."""
    source = next((o for o in view.graph.operators if operator.inputs[0] in o.outputs), None)
    if source is None or source.type not in FUSES_ACTIVATION or any(source.attributes.get("stored_outputs", ())):
        return "it is taken only behind a float Conv, MaxPool or AveragePool"
    return None if refusal(view, source) is None else f"the {source.type} before it is not taken"


_EXTRA: dict[str, Callable[[View, Operator], Any]] = {
    "Conv": _conv,
    "ConvTranspose": _conv,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "Softmax": _softmax,
    "Resize": _resize,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Relu": _activation,
    "Clip": _activation,
}
