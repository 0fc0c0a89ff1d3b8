"""ONNX Runtime's NNAPI provider: what the table cannot say. Source: the provider's builders, named in `targets/ops/ort_nnapi.json`."""

from __future__ import annotations

from edgekit.graph import Operator
from edgekit.opset import rules
from edgekit.opset.view import View

QUANTIZED = frozenset(("Conv", "Resize", "AveragePool", "Add", "Mul", "Transpose", "Reshape", "Softmax", "Concat", "Gemm", "MatMul"))
"""Operators that have an 8-bit form between DequantizeLinear and QuantizeLinear."""

PER_CHANNEL_LEVEL = 3
HALF_STEP = 1 / 256


def refusal(view: View, operator: Operator) -> str | None:
    """Why the NNAPI provider leaves `operator` to the CPU provider, or None."""
    if any(-1 in view.graph.tensors[i].shape for i in (*operator.inputs, *operator.outputs) if i >= 0):
        return "its shapes are open, and NNAPI takes static ones"
    reason = rules.by_table(view, operator)
    if reason:
        return reason
    stored = operator.attributes.get("stored_inputs", ("",))
    if any(operator.attributes.get("stored_outputs", ())) and operator.type in QUANTIZED and stored[0]:
        return _quantized(view, operator, stored)
    found = view.data(operator)[0].dtype
    if operator.type not in ("Cast", "Gather", "DequantizeLinear", "QuantizeLinear", "Reshape", "Squeeze", "Unsqueeze") and found != "float32":
        return f"{found} tensors are not taken, only float32"
    return _grouped(view, operator) if operator.type == "Conv" else None


def _quantized(view: View, operator: Operator, stored: tuple[str, ...]) -> str | None:
    if stored[0] != "uint8":
        return f"{stored[0]} activations are not taken, only uint8"
    if operator.type in ("Conv", "Gemm", "MatMul") and len(stored) > 1:
        per_channel = 1 in operator.attributes.get("channel_inputs", ())
        if stored[1] not in ("uint8", "int8"):
            return f"{stored[1] or 'float32'} weights are not taken beside 8-bit activations"
        if per_channel and operator.type != "Conv":
            return "weights with a scale per channel are taken for Conv only"
        if per_channel and view.level < PER_CHANNEL_LEVEL:
            return f"weights with a scale per channel need feature level {PER_CHANNEL_LEVEL}, and the target promises {view.level}"
        if not per_channel and stored[1] == "int8":
            return "int8 weights need a scale per channel"
    if operator.type == "Softmax" and not _unit_output(view, operator):
        return "the output of an 8-bit Softmax must have the scale 1/256 and the zero point 0"
    return _grouped(view, operator) if operator.type == "Conv" else None


def _grouped(view: View, operator: Operator) -> str | None:
    dilated = any(d != 1 for d in operator.attributes.get("dilations", ()))
    if dilated and operator.attributes.get("group", 1) != 1:
        return "a dilated convolution in groups is not taken"
    return f"dilation needs feature level 3, and the target promises {view.level}" if dilated and view.level < 3 else None


def _unit_output(view: View, operator: Operator) -> bool:
    after = next((o for o in view.graph.operators if o.type == "QuantizeLinear" and o.inputs[0] == operator.outputs[0]), None)
    if after is None:
        return False
    tensor = view.graph.tensors[after.outputs[0]]
    return tensor.scale[:1] == (HALF_STEP,) and tensor.zero_point[:1] in ((), (0,))
