"""Outputs whose channels have unlike ranges, however they came together: one scale for boxes in pixels and scores below one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from edgekit.backends.litert import joins, running, signatures
from edgekit.backends.litert.source import Source
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.tensors import Array

JUDGED = 8
"""Samples that the ranges are looked at on: they are compared with each other, not measured."""

MOST_CHANNELS = 256
"""Longest axis that is looked at: longer ones are places, not channels."""

UNLIKE_LAYER = 16.0
"""Ratio from which a layer's own output channels are unlike: its weights take four times the bytes in float."""

DEAD = 1e-4
"""Part of the widest channel below which a layer's channel is taken for a dead one."""

MOST_SHARE = 0.1
"""Largest share of the model's constants that is kept in float for that."""

COMPUTES = frozenset(
    {"MUL", "ADD", "SUB", "DIV", "MINIMUM", "MAXIMUM", "NEG", "ABS", "EXP", "SQUARE", "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"}
    | {"LEAKY_RELU", "SELECT", "SELECT_V2", "GATHER", "GATHER_ND", "PADV2", "MIRROR_PAD", "TOPK_V2"}
)
"""Operators without weights, which cost little in float, beside those of `joins.MOVES`."""

LAYERS = frozenset({"CONV_2D", "FULLY_CONNECTED", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"})


@dataclasses.dataclass(frozen=True)
class Unlike:
    """An output with unlike channels along `axis`: the operators to keep in float, by their scopes, and a notice; `narrow` marks its channels."""

    axis: int
    narrow: Array
    scopes: tuple[str, ...]
    notice: str


def unlike(source: Source) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Scopes of the operators to keep in float so that the narrow channels of an output keep their resolution, and a notice for each output.

    They are followed up from the output to where each tensor has channels of like ranges; to a layer only where its weights are few.
    """
    found = _found(source).values()
    return tuple(dict.fromkeys(scope for each in found for scope in each.scopes)), tuple(each.notice for each in found)


def parts(source: Source, name: str) -> list[Any]:
    """Indices that take an output apart into channels of like ranges, so that no loss hides behind a wider channel's signal."""
    found = _found(source).get(name)
    return [...] if found is None else [(slice(None),) * found.axis + (chosen,) for chosen in (found.narrow, ~found.narrow)]


def _found(source: Source) -> dict[str, Unlike]:
    result: dict[str, Unlike] = source.once("unlike outputs", lambda: _measure(source))
    return result


def _measure(source: Source) -> dict[str, Unlike]:
    model = source.fresh()
    made = {int(i): op for op in model.subgraphs[0].operators for i in op.outputs}
    rows = {spec.name: _spans([row[spec.name] for row in source.reference[:JUDGED]]) for spec in source.model.signature.outputs}
    ends = dict(zip(rows, signatures.edges(model, source.model.signature)[1], strict=True))
    wide = {name: end for name, end in ends.items() if end in made and max(map(_ratio, rows[name].values()), default=0.0) >= joins.UNLIKE}
    spread = _ratios(source, model, made, list(wide.values())) if wide else {}
    found = {}
    for name, end in wide.items():
        kept, left = _followed(model, made, spread, end)
        if kept or left:
            axis = max(rows[name], key=lambda axis: _ratio(rows[name][axis]))
            span = rows[name][axis]
            integer = source.context.integer
            scopes = () if integer else tuple(joins.scope(model.subgraphs[0], op) for op in kept)
            found[name] = Unlike(axis, span * joins.UNLIKE <= span.max(), scopes, _notice(model, name, spread[end], kept, left, integer))
    return found


def _spans(arrays: Sequence[Array]) -> dict[int, Array]:
    """By axis that may hold channels, the largest magnitude of each, averaged over the arrays."""
    import numpy as np

    shape = arrays[0].shape if arrays and arrays[0].dtype.kind == "f" and arrays[0].size else ()
    return {
        axis: np.mean([np.abs(array).max(axis=tuple(other for other in range(len(shape)) if other != axis)) for array in arrays], axis=0)
        for axis in range(1, len(shape))
        if 2 <= shape[axis] <= MOST_CHANNELS
    }


def _ratio(span: Array, dead: float = 0.0) -> float:
    """Widest to narrowest; channels that are zero throughout do not count, nor do those below that part of the widest."""
    known = span[span > dead * span.max()]
    return float(known.max() / known.min()) if known.size and math.isfinite(known.max()) else 0.0


def _ratios(source: Source, model: Any, made: dict[int, Any], ends: Sequence[int]) -> dict[int, float]:
    """How unlike the channels are of every computed float tensor that an output is followed up to; of a layer, its output channels alone."""
    float32, graph = flatbuffer.schema().TensorType.FLOAT32, model.subgraphs[0]
    reached, todo = list[int](), list(ends)
    while todo:
        tensor = todo.pop()
        if tensor in made and tensor not in reached and graph.tensors[tensor].type == float32:
            reached.append(tensor)
            todo += [int(i) for i in made[tensor].inputs if _passes(model, made[tensor])]
    taps = running.Taps(model, source.model.signature, reached)
    rows = [taps.run(sample) for sample in source.judges[:JUDGED]]
    found = {}
    for tensor in reached:
        spans = _spans([row[tensor] for row in rows])
        if not _passes(model, made[tensor]):
            found[tensor] = max((_ratio(span, DEAD) for axis, span in spans.items() if axis == rows[0][tensor].ndim - 1), default=0.0)
        else:
            found[tensor] = max(map(_ratio, spans.values()), default=0.0)
    return found


def _passes(model: Any, op: Any) -> bool:
    return flatbuffer.op_name(model, op) in COMPUTES | joins.MOVES


def _followed(model: Any, made: dict[int, Any], spread: dict[int, float], end: int) -> tuple[list[Any], list[Any]]:
    """The operators to keep in float for an output, and the layers that would cost too much."""
    kept, left, todo = list[Any](), list[Any](), [end]
    while todo:
        tensor = todo.pop()
        op = made.get(tensor)
        if op is None or any(op is known for known in (*kept, *left)) or spread.get(tensor, 0.0) < joins.UNLIKE:
            continue
        if _passes(model, op):
            kept.append(op)
            todo += [int(i) for i in op.inputs]
        elif flatbuffer.op_name(model, op) in LAYERS and spread[tensor] >= UNLIKE_LAYER:
            (kept if _affordable(model, op) else left).append(op)
    return kept, left


def _affordable(model: Any, op: Any) -> bool:
    tensors = model.subgraphs[0].tensors
    sizes = {index: 0 if (found := flatbuffer.constant(model, tensor)) is None else found.nbytes for index, tensor in enumerate(tensors)}
    return sum(sizes[int(i)] for i in op.inputs if i >= 0) <= MOST_SHARE * sum(sizes.values())


def _notice(model: Any, output: str, ratio: float, kept: Sequence[Any], left: Sequence[Any], integer: bool) -> str:
    tensors = model.subgraphs[0].tensors
    what = f"{output}: the widest channel reaches {ratio:.3g} times as far as the narrowest"
    if integer:
        return f"{what}; {joins.INTEGER}"
    if left:
        layer = flatbuffer.text(tensors[left[0].outputs[0]].name)
        lost = f"the layer {layer} is too large to stay float, and one 8-bit scale rounds the narrow ones away"
        return f"{what}; {lost}: give them outputs of their own"
    names = [flatbuffer.text(tensors[op.outputs[0]].name) for op in kept]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what}: float for {', '.join(names[:3])}{more}, so that the narrow ones keep their resolution"
