"""Pools and transposed convolutions in forms that the target computes as ONNX defines them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgekit.legalize.onnx_split import refusing
from edgekit.legalize.onnx_values import array, attribute, constant, shape


def _transposed(op: Any, x: Any, out: Any) -> Any:
    """Holes of a dilated kernel, and rows behind it that no input reaches, as zeros of the kernel; what is cut off at the ends as padding."""
    node, data, result = out.producer(), shape(x), shape(out)
    weight = array(node.inputs[1])
    if data is None or result is None or weight is None:
        return None
    rank = len(data) - 2
    strides, dilations = (attribute(node, name, [1] * rank) for name in ("strides", "dilations"))
    begin = _begin(node, data[2:], result[2:], weight.shape[2:], strides, dilations)
    wide = _dilated(weight, dilations)
    needed = [o - (d - 1) * s + p for o, d, s, p in zip(result[2:], data[2:], strides, begin, strict=True)]
    grown = _grown(wide, needed)
    if grown.shape == weight.shape:
        return None
    ends = [k - n for k, n in zip(grown.shape[2:], needed, strict=True)]
    rest = node.inputs[2:]
    return op.ConvTranspose(x, constant(op, grown), *rest, strides=strides, pads=[*begin, *ends], group=attribute(node, "group", 1))


def _begin(
    node: Any, data: Sequence[int], result: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """What is cut off at each beginning, by ONNX's formulas for padding that is given, or follows from the output's shape."""
    rank, auto = len(data), attribute(node, "auto_pad", "NOTSET")
    if auto in ("NOTSET", "VALID") and "output_shape" not in node.attributes:
        return [int(p) for p in attribute(node, "pads", [0] * 2 * rank)[:rank]]
    extra = attribute(node, "output_padding", [0] * rank)
    whole = [s * (d - 1) + o + (k - 1) * e + 1 for s, d, o, k, e in zip(strides, data, extra, kernel, dilations, strict=True)]
    total = [max(w - r, 0) for w, r in zip(whole, result, strict=True)]
    return [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total]


def _dilated(weight: Any, dilations: Sequence[int]) -> Any:
    import numpy as np

    sizes = [(k - 1) * e + 1 for k, e in zip(weight.shape[2:], dilations, strict=True)]
    made = np.zeros((*weight.shape[:2], *sizes), weight.dtype)
    places: tuple[slice, ...] = (slice(None), slice(None), *(slice(None, None, e) for e in dilations))
    made[places] = weight
    return made


def _grown(weight: Any, needed: Sequence[int]) -> Any:
    import numpy as np

    return np.pad(weight, [(0, 0), (0, 0), *((0, max(n - k, 0)) for k, n in zip(weight.shape[2:], needed, strict=True))])


def _rounded_up(kind: str) -> Any:
    """`ceil_mode` as padding at the ends, which a MaxPool never picks and an AveragePool that leaves padding out does not count."""

    def replace(op: Any, x: Any, out: Any) -> Any:
        node, data, result = out.producer(), shape(x), shape(out)
        kernel = attribute(node, "kernel_shape", [])
        if data is None or result is None or not attribute(node, "ceil_mode", 0) or attribute(node, "auto_pad", "NOTSET") != "NOTSET":
            return None
        rank = len(kernel)
        strides, dilations, pads = (attribute(node, n, [d] * c) for n, d, c in (("strides", 1, rank), ("dilations", 1, rank), ("pads", 0, 2 * rank)))
        if len(node.outputs) > 1 or (kind == "AveragePool" and attribute(node, "count_include_pad", 0) and any(pads)):
            return None
        reach = [(o - 1) * s + (k - 1) * e + 1 for o, s, k, e in zip(result[2:], strides, kernel, dilations, strict=True)]
        ends = [max(r - d - p, 0) for r, d, p in zip(reach, data[2:], pads, strict=False)]
        holes = {} if all(size == 1 for size in dilations) else {"dilations": dilations}  # onnxruntime's 8-bit pools do not know the attribute
        return getattr(op, kind)(x, kernel_shape=kernel, strides=strides, pads=[*pads[:rank], *ends], **holes)

    return replace


def _averaged(op: Any, x: Any, out: Any) -> Any:
    """A convolution of each channel with equal weights, and a factor where fewer places than the window has are counted."""
    import numpy as np

    node, data, result = out.producer(), shape(x), shape(out)
    kernel = attribute(node, "kernel_shape", [])
    if data is None or result is None:
        return None
    strides, dilations = (attribute(node, name, [1] * len(kernel)) for name in ("strides", "dilations"))
    begin, end = _around(node, data[2:], result[2:], [(k - 1) * e + 1 for k, e in zip(kernel, dilations, strict=True)], strides)
    if not any((*begin, *end)) and all(size == 1 for size in dilations):
        return None
    counted = np.ones(())
    for axis, (d, o, k, s, b, e) in enumerate(zip(data[2:], result[2:], kernel, strides, begin, dilations, strict=True)):
        given = attribute(node, "pads", [*begin, *end])[len(kernel) + axis]  # what rounding up adds is never counted
        low, high = (-b, d + given) if attribute(node, "count_include_pad", 0) else (0, d)
        places = np.arange(o)[:, None] * s - b + np.arange(k) * e
        counted = np.multiply.outer(counted, k / ((places >= low) & (places < high)).sum(axis=1).clip(1))
    weights = constant(op, np.full((data[1], 1, *kernel), 1 / np.prod(kernel)))
    mean = op.Conv(x, weights, kernel_shape=kernel, strides=strides, dilations=dilations, pads=[*begin, *end], group=data[1])
    return mean if (counted == 1).all() else op.Mul(mean, constant(op, counted[None, None]))


def _around(node: Any, data: Sequence[int], result: Sequence[int], kernel: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """Padding at the beginnings and at the ends, what rounding up and `auto_pad` add included."""
    rank, auto = len(kernel), attribute(node, "auto_pad", "NOTSET")
    total = [(o - 1) * s + k - d for o, s, k, d in zip(result, strides, kernel, data, strict=True)]
    if auto.startswith("SAME"):
        begin = [max(t, 0) - max(t, 0) // 2 if auto == "SAME_LOWER" else max(t, 0) // 2 for t in total]
    else:
        begin = [int(p) for p in attribute(node, "pads", [0] * 2 * rank)[:rank]]
    return begin, [max(t - b, 0) for t, b in zip(total, begin, strict=True)]


_AVERAGED = refusing(
    "average-pool-padding", "AveragePool", ("Conv", "Mul"), _averaged, "it is a convolution with equal weights, and a factor at the edges"
)

HALF_RULES = (_AVERAGED,)
"""For what the HTP takes, and computes otherwise in half precision only."""

RULES = (
    refusing("conv-transpose", "ConvTranspose", ("ConvTranspose",), _transposed, "holes and rows behind the kernel are zeros of a larger one"),
    refusing("average-pool-ceil", "AveragePool", ("AveragePool",), _rounded_up("AveragePool"), "rounding up is padding that does not count"),
    _AVERAGED,
    refusing("max-pool-ceil", "MaxPool", ("MaxPool",), _rounded_up("MaxPool"), "rounding up is padding at the ends"),
)
