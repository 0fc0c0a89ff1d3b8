"""Nearest-neighbor Resize in a form that the target computes as ONNX defines it, or as a Gather of rows and columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from edgekit.legalize.onnx_rules import Rule
from edgekit.legalize.onnx_values import array, attribute, constant, shape


def neighbors(count: int, result: int, scale: float, place: str, how: str) -> tuple[int, ...] | None:
    """The index that each of `result` places reads out of `count`, by the formulas of ONNX's Resize; None for a mode not listed here."""
    places: dict[str, Callable[[int], float]] = {
        "asymmetric": lambda x: x / scale,
        "half_pixel": lambda x: (x + 0.5) / scale - 0.5,
        "pytorch_half_pixel": lambda x: (x + 0.5) / scale - 0.5 if result > 1 else 0.0,
        "align_corners": lambda x: x * (count - 1) / (result - 1) if result > 1 else 0.0,
        "tf_half_pixel_for_nn": lambda x: (x + 0.5) / scale,
    }
    rounds: dict[str, Callable[[float], int]] = {
        "round_prefer_floor": lambda v: math.ceil(v - 0.5),
        "round_prefer_ceil": lambda v: math.floor(v + 0.5),
        "floor": math.floor,
        "ceil": math.ceil,
    }
    if place not in places or how not in rounds:
        return None
    return tuple(min(max(rounds[how](places[place](x)), 0), count - 1) for x in range(result))


def _resize(op: Any, x: Any) -> Any:
    return op.Resize(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["out"])


def _exact(op: Any, x: Any, out: Any) -> Any:
    node, before, after = out.producer(), shape(x), shape(out)
    if before is None or after is None or attribute(node, "mode", "nearest") != "nearest" or attribute(node, "axes", None):
        return None
    place, how = attribute(node, "coordinate_transformation_mode", "half_pixel"), attribute(node, "nearest_mode", "round_prefer_floor")
    scales = _scales(node, before, after)
    found = [neighbors(b, a, s, place, how) for b, a, s in zip(before, after, scales, strict=True)]
    for other in (("asymmetric", "floor"), ("half_pixel", "round_prefer_ceil")):
        ratios = [a / b for a, b in zip(after, before, strict=True)]
        if found == [neighbors(b, a, r, *other) for b, a, r in zip(before, after, ratios, strict=True)]:
            if other == (place, how):
                return None
            sizes = constant(op, after, "int64")
            return op.Resize(x, None, None, sizes, mode="nearest", coordinate_transformation_mode=other[0], nearest_mode=other[1])
    return _gathered(op, x, before, found)


def _gathered(op: Any, x: Any, before: Sequence[int], found: Sequence[tuple[int, ...] | None]) -> Any:
    result = x
    for axis, index in enumerate(found):
        if index is None:
            return None
        if index != tuple(range(before[axis])):
            result = op.Gather(result, constant(op, index, "int64"), axis=axis)
    return None if result is x else result


def _scales(node: Any, before: Sequence[int], after: Sequence[int]) -> list[float]:
    given = array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    if given is not None and given.size == len(before):
        return [float(s) for s in given.reshape(-1)]
    return [a / b for a, b in zip(after, before, strict=True)]


RULES = (
    Rule("resize-nearest", "the target takes other neighbors for this form", ("Resize",), ("Resize", "Gather"), (_resize,), _exact,
         splits=True, commutes=False),
)  # fmt: skip
