"""Resize in a form that the target computes as ONNX defines it, as a Gather of rows and columns, or as products with interpolation weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from edgekit.errors import require
from edgekit.legalize import onnx_rules
from edgekit.legalize.onnx_prepare import Prepared
from edgekit.legalize.onnx_rules import Rule
from edgekit.legalize.onnx_values import array, attribute, constant, shape
from edgekit.tensors import Array

MOST_PLACES = 65536
"""Larger planes are left to the target's own interpolation: as products they would cost more than the layers around them."""


def neighbors(count: int, result: int, scale: float, place: str, how: str) -> tuple[int, ...] | None:
    """The index that each of `result` places reads out of `count`, by the formulas of ONNX's Resize; None for a mode not listed here."""
    places: dict[str, Callable[[int], float]] = {
        "asymmetric": lambda x: x / scale,
        "half_pixel": lambda x: (x + 0.5) / scale - 0.5,
        "pytorch_half_pixel": lambda x: (x + 0.5) / scale - 0.5 if result > 1 else 0.0,
        "half_pixel_symmetric": lambda x: (1 - result / (scale * count)) * count / 2 + (x + 0.5) / scale - 0.5,
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


def _rule(name: str, replace: Callable[..., Any], reason: str, *gives: str) -> Rule:
    return Rule(name, reason, ("Resize",), ("Resize", *gives), (_resize,), replace, splits=True, commutes=False)


def _resize(op: Any, x: Any) -> Any:
    return op.Resize(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["out"])


def _exact(op: Any, x: Any, out: Any) -> Any:
    node, before, after = out.producer(), shape(x), shape(out)
    if before is None or after is None or attribute(node, "mode", "nearest") != "nearest" or attribute(node, "axes", None):
        return None
    place, how = attribute(node, "coordinate_transformation_mode", "half_pixel"), attribute(node, "nearest_mode", "round_prefer_floor")
    scales = _scales(node, before, after)
    found = [neighbors(b, a, s, place, how) for b, a, s in zip(before, after, scales, strict=True)]
    if _across(before, after):
        return _gathered(op, x, before, found)
    for other in (("asymmetric", "floor"), ("half_pixel", "round_prefer_ceil")):
        ratios = [a / b for a, b in zip(after, before, strict=True)]
        if found == [neighbors(b, a, r, *other) for b, a, r in zip(before, after, ratios, strict=True)]:
            if other == (place, how):
                return None
            sizes = constant(op, after, "int64")
            return op.Resize(x, None, None, sizes, mode="nearest", coordinate_transformation_mode=other[0], nearest_mode=other[1])
    return _gathered(op, x, before, found)


def _across(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether channels or samples are resized as well, which few targets do."""
    return tuple(before[:-2]) != tuple(after[:-2])


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


def _plain(op: Any, x: Any, out: Any) -> Any:
    """Sizes of all axes, instead of some of them or a ratio to keep."""
    node, before, after = out.producer(), shape(x), shape(out)
    if before is None or after is None or not (attribute(node, "axes", None) or attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch"):
        return None
    axes = [axis % len(before) for axis in attribute(node, "axes", range(len(before)))]
    given = array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    kept = {name: value.value for name, value in node.attributes.items() if name not in ("axes", "keep_aspect_ratio_policy")}
    if given is None or not given.size:
        return op.Resize(x, None, None, constant(op, after, "int64"), **kept)
    scales = [1.0] * len(before)
    for place, axis in enumerate(axes):
        scales[axis] = float(given[place])
    return op.Resize(x, None, constant(op, scales), **kept)


def _interpolated(op: Any, x: Any, out: Any) -> Any:
    """A product with the weights of each axis that changes: interpolation is linear, and one axis knows nothing of the other."""
    node, before, after = out.producer(), shape(x), shape(out)
    mode = attribute(node, "mode", "nearest")
    if (
        before is None
        or after is None
        or mode not in ("linear", "cubic")
        or attribute(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize"
    ):
        return None
    changed = [axis for axis in range(len(before)) if before[axis] != after[axis]]
    if not changed or math.prod(before[-2:]) > MOST_PLACES:
        return None
    scales, result, last = _scales(node, before, after), x, len(before) - 1
    for axis in changed:
        weights = constant(op, interpolation(node, before[axis], after[axis], scales[axis]))
        if axis == last:
            result = op.MatMul(result, weights)
        else:
            turn = [{axis: last, last: axis}.get(place, place) for place in range(len(before))]
            result = op.Transpose(op.MatMul(op.Transpose(result, perm=turn), weights), perm=turn)
    return result


def _rarely_known(op: Any, x: Any, out: Any) -> Any:
    """As products where the form is one that few runtimes know."""
    node, before, after = out.producer(), shape(x), shape(out)
    rare = attribute(node, "antialias", 0) or attribute(node, "exclude_outside", 0)
    symmetric = attribute(node, "coordinate_transformation_mode", "half_pixel") == "half_pixel_symmetric"
    across = before is not None and after is not None and _across(before, after)
    return _interpolated(op, x, out) if rare or symmetric or across else None


def _of_any_axis(op: Any, x: Any, out: Any) -> Any:
    """Where channels or samples are resized as well."""
    before, after = shape(x), shape(out)
    if before is None or after is None or not _across(before, after):
        return None
    return _exact(op, x, out) if attribute(out.producer(), "mode", "nearest") == "nearest" else _interpolated(op, x, out)


def interpolation(node: Any, count: int, result: int, scale: float) -> Array:
    """What each of `count` places gives to each of `result` places, [count, result]: the operator's own answer for each place alone."""
    import numpy as np
    import onnx

    kept = ("mode", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "antialias")
    attributes = {name: node.attributes[name].value for name in kept if name in node.attributes}
    graph = onnx.parser.parse_graph(f"g (float[1, 1, {count}, {count}] x) => (float[1, 1, {count}, {result}] y) {{ y = Identity (x) }}")
    del graph.node[:]
    graph.node.append(onnx.helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 1, 1, scale], np.float32), "scales"))
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    session = require("onnxruntime", extra="onnx", purpose="running an ONNX model").InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found: Array = session.run(None, {"x": np.eye(count, dtype=np.float32)[None, None]})[0][0, 0]
    return found


NEAREST = (
    _rule("resize-axes", _plain, "the target takes sizes of all axes"),
    _rule("resize-nearest", _exact, "the target takes other neighbors for this form", "Gather"),
)

_PRODUCTS = "the target interpolates this form otherwise: a product with the weights of each axis"

RULES = (*NEAREST, _rule("resize-interpolation", _interpolated, _PRODUCTS, "MatMul", "Transpose"))

RARE = (*NEAREST, _rule("resize-interpolation", _rarely_known, _PRODUCTS, "MatMul", "Transpose"))
"""For a target that takes linear and cubic interpolation in all but rare forms."""

ACROSS = (NEAREST[0], _rule("resize-across", _of_any_axis, "the target resizes rows and columns only", "Gather", "MatMul", "Transpose"))
"""For a target that takes every form, of rows and columns."""


def written_out(prepared: Prepared, rules: Sequence[Rule]) -> Prepared:
    """The prepared model with `rules` applied, each told in a notice."""
    model, notices = prepared.model, prepared.notices
    for rule in rules:
        if any(node.op_type == "Resize" for node in model.handle.graph.node):
            proto, count = onnx_rules.apply(rule, model.handle)
            model = dataclasses.replace(model, handle=proto) if count else model
            notices = (*notices, f"{rule.name}: {count} x: {rule.reason}") if count else notices
    return dataclasses.replace(prepared, model=model, notices=notices)
