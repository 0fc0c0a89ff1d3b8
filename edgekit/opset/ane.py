"""Apple's neural engine: what the table cannot say. Sources: see the table; the limits are those of A13, the narrowest."""

from __future__ import annotations

from edgekit.graph import GraphTensor, Operator
from edgekit.opset import rules
from edgekit.opset.view import View

LONGEST = 16384
"""Of an axis (A13 to A15; 65536 from A16 on)."""
KERNEL = (29, 13)
"""Height and width of a half-precision convolution's kernel (A13; 32 and 16 from A14 on)."""
ARGMAX_AXIS = 2048
FLOAT = frozenset(("float32", "float64"))


def refusal(view: View, operator: Operator) -> str | None:
    """Why `operator` runs on GPU or CPU, or None."""
    reason = rules.by_table(view, operator)
    if reason is not None or operator.type.startswith("constexpr_"):
        return reason
    tensors = [view.graph.tensors[i] for i in (*operator.inputs, *operator.outputs) if i >= 0 and not view.graph.tensors[i].constant]
    return _precision(operator, view) or _shapes(tensors) or _own(view, operator)


def _precision(operator: Operator, view: View) -> str | None:
    outputs = [view.graph.tensors[i].dtype for i in operator.outputs]
    if operator.type == "cast":
        return None
    if FLOAT & set(outputs):
        return "it computes in single precision, and the neural engine in half precision only (documented)"
    return "it computes with 32-bit integers, which the neural engine does not (observed by others)" if "int32" in outputs else None


def _shapes(tensors: list[GraphTensor]) -> str | None:
    for tensor in tensors:
        if len(tensor.shape) > 5:
            return f"{tensor.name} has {len(tensor.shape)} axes, and the neural engine takes 5 (observed by others)"
        if max(tensor.shape, default=0) > LONGEST:
            return f"{tensor.name} is {max(tensor.shape)} long, and the neural engine takes {LONGEST} along an axis (observed by others)"
        if -1 in tensor.shape:
            return f"{tensor.name} has a size that is known at run time only (documented)"
    return None


def _own(view: View, operator: Operator) -> str | None:
    if operator.type == "conv":
        kernel = max((view.graph.tensors[i].shape[2:] for i in operator.inputs[1:] if i >= 0), key=len, default=())
        if len(kernel) == 3:
            return "convolutions in three dimensions are not taken (observed by others)"
        if any(size > limit for size, limit in zip(kernel[::-1], KERNEL[::-1], strict=False)):
            return f"its kernel is {'x'.join(map(str, kernel))}, and the neural engine takes 29x13 (observed by others)"
    if operator.type in ("reduce_argmax", "reduce_argmin"):
        shape, axis = view.graph.tensors[operator.inputs[0]].shape, int(operator.attributes.get("axis", -1))
        if shape and shape[axis] > ARGMAX_AXIS:
            return f"it searches {shape[axis]} values, and the neural engine {ARGMAX_AXIS} (observed by others)"
    return None
