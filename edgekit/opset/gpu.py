"""The LiteRT GPU delegate: what the table cannot say. Source: LiteRT `tflite/delegates/gpu/common/model_builder.cc`; not checked on a device."""

from __future__ import annotations

from collections.abc import Callable

from edgekit.graph import GraphTensor, Operator
from edgekit.opset import rules
from edgekit.opset.view import View

CAST_TYPES = frozenset(("bool", "int32", "float32", "float16"))


def refusal(view: View, operator: Operator) -> str | None:
    """Why the GPU delegate leaves `operator` to the CPU, or None."""
    if operator.type in ("DEQUANTIZE", "DENSIFY") and view.is_static(operator, 0):
        return None
    if any(-1 in view.graph.tensors[i].shape[1:] for i in (*operator.inputs, *operator.outputs) if i >= 0):
        return "dynamic shapes are not taken"
    reason = rules.by_table(view, operator)
    extra = _EXTRA.get(operator.type)
    return reason or (extra(view, operator) if extra else None)


def _broadcast(view: View, operator: Operator) -> str | None:
    first, second = sorted((view.graph.tensors[i].shape for i in operator.inputs[:2]), key=lambda shape: (len(shape), _size(shape)))
    if len(first) == len(second) or len(first) <= 1:
        return None
    ranks = (len(second), len(first))
    listed = (ranks == (4, 3) and first[0] == 1) or (ranks == (4, 2) and (first == (1, 1) or first == (second[0], second[3])))
    return None if listed else f"shapes {list(second)} and {list(first)} broadcast in a way it does not have"


def _size(shape: tuple[int, ...]) -> int:
    product = 1
    for n in shape:
        product *= n
    return product


def _cast(view: View, operator: Operator) -> str | None:
    types = {tensor.dtype for tensor in _ends(view, operator)}
    return None if types <= CAST_TYPES else f"casts between {' and '.join(sorted(types))} are not taken"


def _ends(view: View, operator: Operator) -> list[GraphTensor]:
    return [view.graph.tensors[operator.inputs[0]], view.output(operator)]


def _gather(view: View, operator: Operator) -> str | None:
    indices = view.tensor(operator, 1)
    return "indices must be int32 with one dimension" if indices and (indices.dtype != "int32" or len(indices.shape) != 1) else None


def _resize(_view: View, operator: Operator) -> str | None:
    both = operator.attributes.get("align_corners") and operator.attributes.get("half_pixel_centers")
    return "align corners together with half pixel centers is not taken" if both else None


_EXTRA: dict[str, Callable[[View, Operator], str | None]] = {
    "ADD": _broadcast,
    "MUL": _broadcast,
    "CAST": _cast,
    "GATHER": _gather,
    "RESIZE_BILINEAR": _resize,
    "DEPTH_TO_SPACE": rules.block,
    "SPACE_TO_DEPTH": rules.block,
}
