"""ONNX operators as PyTorch functions, for graphs of known shapes. Source of the semantics: ONNX's operator documentation, opset 17 and 18."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)

from edgekit.converters._onnx_torch_call import Call
from edgekit.converters._onnx_torch_windows import conv, conv_transpose, pool


def gemm(call: Call) -> Any:
    """Alpha A B + beta C."""
    a, b, *rest = call.inputs
    a, b = (a.t() if call.get("transA", 0) else a), (b.t() if call.get("transB", 0) else b)
    product = a @ b if call.get("alpha", 1.0) == 1.0 else call.get("alpha") * (a @ b)
    return product + call.get("beta", 1.0) * rest[0] if rest and rest[0] is not None else product


def normalization(call: Call) -> Any:
    """BatchNormalization, InstanceNormalization and LayerNormalization in inference."""
    x, epsilon = call.inputs[0], call.get("epsilon", 1e-5)
    if call.type == "BatchNormalization":
        scale, bias, mean, variance = call.inputs[1:5]
        return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)
    if call.type == "InstanceNormalization":
        return F.instance_norm(x, weight=call.inputs[1], bias=call.inputs[2], eps=epsilon)
    shape = x.shape[call.get("axis", -1) :]
    return F.layer_norm(x, shape, call.inputs[1], call.inputs[2] if len(call.inputs) > 2 else None, epsilon)


def reshape(call: Call) -> Any:
    """Reshape: 0 keeps an axis."""
    sizes = call.ints(1) or []
    kept = call.inputs[0].shape
    return call.inputs[0].reshape([kept[i] if n == 0 and not call.get("allowzero", 0) else n for i, n in enumerate(sizes)])


def slices(call: Call) -> Any:
    """Slice; negative steps flip."""
    x, starts, ends = call.inputs[0], call.ints(1, "starts") or [], call.ints(2, "ends") or []
    axes, steps = call.ints(3, "axes") or list(range(len(starts))), call.ints(4) or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        places = range(x.shape[axis])[slice(start, end if step > 0 or end >= -x.shape[axis] else None, step)]
        if step < 0:
            x = x.flip(axis) if len(places) == x.shape[axis] and step == -1 else x.index_select(axis, torch.tensor(list(places)))
        else:
            x = x.narrow(axis, places.start, max(places.stop - places.start, 0))
            x = x if step == 1 else x.index_select(axis, torch.arange(0, x.shape[axis], step))
    return x


def split(call: Call) -> Any:
    """Split by sizes, or in equal parts."""
    axis, sizes = call.get("axis", 0), call.ints(1, "split")
    length = call.inputs[0].shape[axis]
    return tuple(torch.split(call.inputs[0], sizes or -(-length // call.outputs), axis))


def squeeze(call: Call) -> Any:
    """Squeeze and Unsqueeze."""
    x, axes = call.inputs[0], call.ints(1, "axes")
    if call.type == "Unsqueeze":
        rank = x.dim() + len(axes or ())
        for axis in sorted(a % rank for a in axes or ()):
            x = x.unsqueeze(axis)
        return x
    return x.squeeze() if axes is None else x.squeeze(tuple(a % x.dim() for a in axes))


def pad(call: Call) -> Any:
    """Pad: constant, reflect, edge."""
    x, flat = call.inputs[0], call.ints(1, "pads") or []
    if len(call.inputs) > 3 and call.inputs[3] is not None:
        raise call.refuse("padding of chosen axes")
    rank, mode = x.dim(), call.get("mode", b"constant")
    mode = mode.decode() if isinstance(mode, bytes) else mode
    value = call.constants[2] if len(call.constants) > 2 else None
    widths = [n for i in reversed(range(rank)) for n in (flat[i], flat[i + rank])]
    if mode == "constant":
        return F.pad(x, widths, value=float(value.reshape(-1)[0]) if value is not None and value.size else call.get("value", 0.0))
    used = max((i for i in range(rank) if flat[i] or flat[i + rank]), default=-1), next((i for i in range(rank) if flat[i] or flat[i + rank]), rank)
    if used[1] < rank - 3 or rank < 2:
        raise call.refuse(f"{mode} padding of these axes")
    return F.pad(x, widths[: 2 * max(rank - used[1], 1)], mode={"reflect": "reflect", "edge": "replicate"}[mode])


def reduce(call: Call) -> Any:
    """Reductions over axes, all when there are none."""
    x, axes = call.inputs[0], call.ints(1, "axes")
    if not axes and call.get("noop_with_empty_axes", 0):
        return x
    dims, keep = tuple(axes or range(x.dim())), bool(call.get("keepdims", 1))
    return {
        "ReduceMean": lambda: x.mean(dims, keep),
        "ReduceSum": lambda: x.sum(dims, keep),
        "ReduceMax": lambda: x.amax(dims, keep),
        "ReduceMin": lambda: x.amin(dims, keep),
        "ReduceL1": lambda: x.abs().sum(dims, keep),
        "ReduceL2": lambda: (x * x).sum(dims, keep).sqrt(),
        "ReduceSumSquare": lambda: (x * x).sum(dims, keep),
        "ReduceLogSumExp": lambda: x.logsumexp(dims, keep),
    }[call.type]()


def resize(call: Call) -> Any:
    """Resize of the last two axes, in the forms that PyTorch has as well."""
    x, text = call.inputs[0], {k: v.decode() if isinstance(v, bytes) else v for k, v in call.attributes.items()}
    sizes = call.ints(3) if len(call.inputs) > 3 else None
    scales = call.constants[2] if len(call.constants) > 2 else None
    wanted = sizes or [math.floor(n * float(s)) for n, s in zip(x.shape, [] if scales is None else scales.reshape(-1), strict=True)]
    mode, places = text.get("mode", "nearest"), text.get("coordinate_transformation_mode", "half_pixel")
    plain = x.dim() == 4 and wanted[:2] == list(x.shape[:2]) and not text.get("antialias", 0)
    if plain and mode == "nearest" and places == "asymmetric" and text.get("nearest_mode", "round_prefer_floor") == "floor":
        return F.interpolate(x, wanted[2:], mode="nearest")
    if plain and mode == "nearest" and all(w % n == 0 for w, n in zip(wanted[2:], x.shape[2:], strict=True)):
        return F.interpolate(x, wanted[2:], mode="nearest")
    if plain and mode == "linear" and places in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        return F.interpolate(x, wanted[2:], mode="bilinear", align_corners=places == "align_corners")
    if x.dim() != 4 or wanted[:2] != list(x.shape[:2]):
        raise call.refuse(f"a resize from {list(x.shape)} to {wanted}, of other axes than the last two of four,")
    raise call.refuse(f"mode {mode} with coordinates {places}{' and antialiasing' if text.get('antialias', 0) else ''}")


def cast(call: Call) -> Any:
    """Cast between the types that PyTorch has."""
    kinds = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float16, 11: torch.float64, 2: torch.uint8, 3: torch.int8}
    if call.get("to") not in kinds:
        raise call.refuse(f"type {call.get('to')}")
    return call.inputs[0].to(kinds[call.get("to")])


def clip(call: Call) -> Any:
    """Clip to constant bounds."""
    ends = [call.get("min"), call.get("max")]
    for place in (1, 2):
        if place < len(call.inputs) and call.inputs[place] is not None:
            value = call.constants[place]
            if value is None:
                raise call.refuse("a bound computed at run time")
            ends[place - 1] = value.reshape(-1)[0].item()
    return call.inputs[0].clamp(*ends)


def gather(call: Call) -> Any:
    """Gather along an axis, by indices of any shape."""
    x, indices = call.inputs
    axis = call.get("axis", 0) % x.dim()
    flat = torch.where(indices < 0, indices + x.shape[axis], indices).reshape(-1)
    return x.index_select(axis, flat).reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


def divide(call: Call) -> Any:
    """Division; of integers it truncates."""
    a, b = call.inputs
    return torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def extreme(call: Call) -> Any:
    """Max, Min and Sum of any number of tensors."""
    function = {"Max": torch.maximum, "Min": torch.minimum, "Sum": torch.add}[call.type]
    out = call.inputs[0]
    for other in call.inputs[1:]:
        out = function(out, other)
    return out


def _of_first(function: Callable[[Any], Any]) -> Callable[[Call], Any]:
    return lambda call: function(call.inputs[0])


def _of_two(function: Callable[[Any, Any], Any]) -> Callable[[Call], Any]:
    return lambda call: function(call.inputs[0], call.inputs[1])


UNARY = ("abs", "ceil", "cos", "erf", "exp", "floor", "log", "neg", "reciprocal", "relu", "round", "sigmoid", "sign", "sin", "sqrt", "tanh")
BINARY = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Pow": torch.pow, "MatMul": torch.matmul, "And": torch.logical_and}
COMPARED = {"Equal": torch.eq, "Greater": torch.gt, "Less": torch.lt, "GreaterOrEqual": torch.ge, "LessOrEqual": torch.le, "Or": torch.logical_or}
REDUCED = ("Mean", "Sum", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp")

OPERATORS: dict[str, Callable[[Call], Any]] = {
    **{name.capitalize(): _of_first(getattr(torch, name)) for name in UNARY},
    **{name: _of_two(function) for name, function in (BINARY | COMPARED).items()},
    **{f"Reduce{name}": reduce for name in REDUCED},
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "LayerNormalization"), normalization),
    **dict.fromkeys(("MaxPool", "AveragePool"), pool),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), squeeze),
    **dict.fromkeys(("Max", "Min", "Sum"), extreme),
    "Cast": cast,
    "Clip": clip,
    "Concat": lambda call: torch.cat(call.inputs, call.get("axis")),
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Div": divide,
    "Elu": lambda call: F.elu(call.inputs[0], call.get("alpha", 1.0)),
    "Expand": lambda call: call.inputs[0] * torch.ones(call.ints(1) or [], dtype=call.inputs[0].dtype),
    "Flatten": lambda call: call.inputs[0].reshape(math.prod(call.inputs[0].shape[: call.get("axis", 1)]), -1),
    "Gather": gather,
    "Gemm": gemm,
    "GlobalAveragePool": lambda call: call.inputs[0].mean(tuple(range(2, call.inputs[0].dim())), True),
    "GlobalMaxPool": lambda call: call.inputs[0].amax(tuple(range(2, call.inputs[0].dim())), True),
    "HardSigmoid": lambda call: (call.inputs[0] * call.get("alpha", 0.2) + call.get("beta", 0.5)).clamp(0, 1),
    "HardSwish": _of_first(F.hardswish),
    "Identity": _of_first(lambda x: x),
    "LeakyRelu": lambda call: F.leaky_relu(call.inputs[0], call.get("alpha", 0.01)),
    "LogSoftmax": lambda call: F.log_softmax(call.inputs[0], call.get("axis", -1)),
    "Not": _of_first(torch.logical_not),
    "Pad": pad,
    "PRelu": _of_two(lambda x, slope: torch.where(x < 0, x * slope, x)),
    "Reshape": reshape,
    "Resize": resize,
    "Slice": slices,
    "Softmax": lambda call: F.softmax(call.inputs[0], call.get("axis", -1)),
    "Softplus": _of_first(F.softplus),
    "Split": split,
    "Tile": lambda call: call.inputs[0].repeat(call.ints(1) or []),
    "Transpose": lambda call: call.inputs[0].permute(call.get("perm", list(range(call.inputs[0].dim()))[::-1])),
    "Where": lambda call: torch.where(*call.inputs),
}
"""Function of a `Call` by ONNX name; it gives one tensor, or a tuple where a node has several outputs."""
