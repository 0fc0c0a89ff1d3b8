"""ONNX operators that slide a window, as PyTorch functions: convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)

from edgekit.converters._onnx_torch_call import Call


def _pads(call: Call, size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[tuple[int, int]]:
    rank, mode = len(kernel), call.get("auto_pad", b"NOTSET")
    mode = mode.decode() if isinstance(mode, bytes) else mode
    if not mode.startswith("SAME"):
        flat = [0] * (2 * rank) if mode == "VALID" else list(call.get("pads", [0] * (2 * rank)))
        return [(flat[i], flat[i + rank]) for i in range(rank)]
    total = [max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0) for n, k, s, d in zip(size, kernel, strides, dilations, strict=True)]
    return [(t // 2, t - t // 2) if mode == "SAME_UPPER" else (t - t // 2, t // 2) for t in total]


def _padded(x: Any, pads: Sequence[tuple[int, int]], value: float = 0.0) -> Any:
    return F.pad(x, [n for pair in reversed(pads) for n in pair], value=value) if any(a or b for a, b in pads) else x


def conv(call: Call) -> Any:
    """Conv in one to three dimensions."""
    x, weight, *rest = call.inputs
    rank = weight.dim() - 2
    strides, dilations = call.get("strides", [1] * rank), call.get("dilations", [1] * rank)
    pads = _pads(call, x.shape[2:], weight.shape[2:], strides, dilations)
    even = all(a == b for a, b in pads)
    x = x if even else _padded(x, pads)
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return function(x, weight, rest[0] if rest else None, strides, [a for a, _ in pads] if even else 0, dilations, call.get("group", 1))


def conv_transpose(call: Call) -> Any:
    """ConvTranspose with even padding."""
    x, weight, *rest = call.inputs
    rank = weight.dim() - 2
    strides, dilations = call.get("strides", [1] * rank), call.get("dilations", [1] * rank)
    pads = _pads(call, x.shape[2:], weight.shape[2:], strides, dilations)
    if "output_shape" in call.attributes or any(a != b for a, b in pads) or call.get("auto_pad", b"NOTSET") not in (b"NOTSET", "NOTSET"):
        raise call.refuse("uneven padding or a stated output shape")
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    extra = call.get("output_padding", [0] * rank)
    return function(x, weight, rest[0] if rest else None, strides, [a for a, _ in pads], extra, call.get("group", 1), dilations)


def pool(call: Call) -> Any:
    """MaxPool and AveragePool."""
    x, kernel = call.inputs[0], call.get("kernel_shape")
    rank = len(kernel)
    strides, dilations = call.get("strides", [1] * rank), call.get("dilations", [1] * rank)
    pads, ceil = _pads(call, x.shape[2:], kernel, strides, dilations), bool(call.get("ceil_mode", 0))
    if call.type == "MaxPool":
        if call.outputs > 1:
            raise call.refuse("the output of indices")
        x = _padded(x, pads, -math.inf)
        return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1](x, kernel, strides, 0, dilations, ceil)
    function: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    counted = bool(call.get("count_include_pad", 0)) or not any(a or b for a, b in pads)
    if any(d != 1 for d in dilations) or (not counted and ceil):
        raise call.refuse("this combination of padding, dilation and rounding up")
    total = function(_padded(x, pads), kernel, strides, 0, ceil)
    return total if counted else total / function(_padded(torch.ones_like(x), pads), kernel, strides, 0, ceil)
