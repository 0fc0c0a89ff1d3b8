"""Normalizations: written out -> one operator over the last axis; other axes and groups -> that operator between reshapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from edgekit.legalize.onnx_rules import Rule
from edgekit.legalize.onnx_split import _any
from edgekit.legalize.onnx_values import array, attribute, axes, constant, number, shape


def _mean(op: Any, value: Any, name: str) -> Any:
    return op.ReduceMean(value, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=[name])


def _normalized(op: Any, x: Any, two: Any, epsilon: Any) -> Any:
    deviation = op.Sub(x, _mean(op, x, "mean"))
    return op.Div(deviation, op.Sqrt(op.Add(_mean(op, op.Pow(deviation, two), "variance"), epsilon)))


def _written_out(op: Any, x: Any, two: Any, epsilon: Any) -> Any:
    return _normalized(op, x, two, epsilon)


def _written_out_with_product(op: Any, x: Any, epsilon: Any) -> Any:
    deviation = op.Sub(x, _mean(op, x, "mean"))
    return op.Div(deviation, op.Sqrt(op.Add(_mean(op, op.Mul(deviation, deviation), "variance"), epsilon)))


def _layer_norm(op: Any, x: Any, epsilon: Any, mean: Any, variance: Any, two: Any = None) -> Any:
    sizes, small = shape(x), number(epsilon)
    if sizes is None or small is None or (two is not None and number(two) != 2.0) or not _over_last(sizes, mean, variance):
        return None
    return _plain(op, x, sizes[-1], small)


def _plain(op: Any, x: Any, count: int, epsilon: float) -> Any:
    return op.LayerNormalization(x, constant(op, [1.0] * count), constant(op, [0.0] * count), axis=-1, epsilon=epsilon)


def _over_last(sizes: Sequence[int], *reductions: Any) -> bool:
    nodes = [value.producer() for value in reductions]
    return all(axes(node) in ((-1,), (len(sizes) - 1,)) and attribute(node, "keepdims", 1) for node in nodes)


def _affine(op: Any, x: Any, ones: Any, scale: Any, bias: Any) -> Any:
    plain = op.LayerNormalization(x, ones, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["plain"])
    return op.Add(op.Mul(plain, scale), bias)


def _with_affine(op: Any, x: Any, ones: Any, scale: Any, bias: Any, plain: Any) -> Any:
    node, sizes = plain.producer(), shape(x)
    values = [array(value) for value in (ones, scale, bias)]
    known = [value for value in values if value is not None and sizes is not None and value.shape[-1:] == (sizes[-1],) == (value.size,)]
    offset = array(node.inputs[2]) if len(node.inputs) > 2 else None
    if len(known) < 3 or not (known[0] == 1).all() or (len(node.inputs) > 2 and (offset is None or offset.any())):
        return None
    flat = [constant(op, value.reshape(-1)) for value in known[1:]]
    return op.LayerNormalization(x, *flat, axis=-1, epsilon=attribute(node, "epsilon", 1e-5))


def _trailing_axes(op: Any, x: Any, out: Any) -> Any:
    """Normalization over several trailing axes is one over their product."""
    node, sizes = out.producer(), shape(x)
    axis = attribute(node, "axis", -1)
    if sizes is None or axis in (-1, len(sizes) - 1) or len([o for o in node.outputs if o.uses() or o.is_graph_output()]) > 1:
        return None
    axis %= len(sizes)
    parameters = [array(value) for value in node.inputs[1:]]
    if any(value is None for value in parameters):
        return None
    flat = op.Reshape(x, constant(op, [*sizes[:axis], math.prod(sizes[axis:])], "int64"))
    whole = [constant(op, _spread(value, sizes[axis:])) for value in parameters]
    whole += [constant(op, [0.0] * math.prod(sizes[axis:]))] * (2 - len(whole))
    done = op.LayerNormalization(flat, *whole, axis=-1, epsilon=attribute(node, "epsilon", 1e-5))
    return op.Reshape(done, constant(op, sizes, "int64"))


def _with_bias(op: Any, x: Any, out: Any) -> Any:
    node, sizes = out.producer(), shape(x)
    if sizes is None or len(node.inputs) != 2 or attribute(node, "axis", -1) not in (-1, len(sizes) - 1):
        return None
    if len([o for o in node.outputs if o.uses() or o.is_graph_output()]) > 1:
        return None
    return op.LayerNormalization(x, node.inputs[1], constant(op, [0.0] * sizes[-1]), axis=-1, epsilon=attribute(node, "epsilon", 1e-5))


def _spread(value: Any, sizes: Sequence[int]) -> Any:
    import numpy as np

    return np.broadcast_to(value, tuple(sizes)).reshape(-1)


def _instance_norm(op: Any, x: Any, out: Any) -> Any:
    node, sizes = out.producer(), shape(x)
    scale, bias = (array(value) for value in node.inputs[1:3])
    if sizes is None or scale is None or bias is None:
        return None
    return _grouped(op, x, sizes, sizes[1], scale, bias, attribute(node, "epsilon", 1e-5))


def _group_norm(op: Any, x: Any, out: Any) -> Any:
    import numpy as np

    node, sizes = out.producer(), shape(x)
    scale, bias = (array(value) for value in node.inputs[1:3])
    groups = attribute(node, "num_groups", 0)
    if sizes is None or scale is None or bias is None or not groups:
        return None
    if len(scale) == groups != sizes[1]:  # one factor a group, as operator set 18 had it
        scale, bias = (np.repeat(value, sizes[1] // groups) for value in (scale, bias))
    return _grouped(op, x, sizes, groups, scale, bias, attribute(node, "epsilon", 1e-5))


def _grouped(op: Any, x: Any, sizes: Sequence[int], groups: int, scale: Any, bias: Any, epsilon: float) -> Any:
    """Each group of channels normalized over all its elements, then scaled and shifted by channel."""
    rest = math.prod(sizes[1:]) // groups
    flat = op.Reshape(x, constant(op, [sizes[0], groups, rest], "int64"))
    plain = _plain(op, flat, rest, epsilon)
    return _by_channel(op, op.Reshape(plain, constant(op, sizes, "int64")), len(sizes), scale, bias)


def _batch_norm(op: Any, x: Any, out: Any) -> Any:
    import numpy as np

    node, sizes = out.producer(), shape(x)
    values = [array(value) for value in node.inputs[1:5]]
    if sizes is None or len(sizes) < 2 or any(value is None for value in values) or attribute(node, "training_mode", 0):
        return None
    scale, bias, mean, variance = (np.asarray(value, np.float64) for value in values)
    factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    return _by_channel(op, x, len(sizes), factor, bias - mean * factor)


def _by_channel(op: Any, x: Any, rank: int, scale: Any, bias: Any) -> Any:
    form = (1, -1, *(1,) * (rank - 2))
    return op.Add(op.Mul(x, constant(op, scale.reshape(form))), constant(op, bias.reshape(form)))


def _refused(name: str, kind: str, gives: tuple[str, ...], replace: Any, reason: str) -> Rule:
    return Rule(name, reason, (kind,), gives, (_any(kind),), replace, splits=True, commutes=False)


RULES = (
    Rule("layer-norm", "written out: the squares inside have no range that 8 bits or half precision hold", ("ReduceMean", "Sub", "Sqrt", "Div"),
         ("LayerNormalization",), (_written_out, _written_out_with_product), _layer_norm),
    Rule("layer-norm-affine", "factor and offset belong to the operator", ("LayerNormalization", "Mul", "Add"), ("LayerNormalization",),
         (_affine,), _with_affine),
    _refused("layer-norm-bias", "LayerNormalization", ("LayerNormalization",), _with_bias, "with 16 bits the target takes it with a bias only"),
    _refused("layer-norm-axes", "LayerNormalization", ("LayerNormalization", "Reshape"), _trailing_axes, "the target normalizes the last axis only"),
    _refused("instance-norm", "InstanceNormalization", ("LayerNormalization", "Reshape", "Mul", "Add"), _instance_norm,
             "the target has it in no form that could be finalized"),
    _refused("group-norm", "GroupNormalization", ("LayerNormalization", "Reshape", "Mul", "Add"), _group_norm, "the target has no groups here"),
    _refused("batch-norm", "BatchNormalization", ("Mul", "Add"), _batch_norm, "no layer before it could take its factors in"),
)  # fmt: skip
