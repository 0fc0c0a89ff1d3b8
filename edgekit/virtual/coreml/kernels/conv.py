"""Convolution and transposed convolution over 1 to 3 spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F  # noqa: N812 (torch's own convention)

from edgekit.virtual.coreml.kernels.arguments import Tensor, integer, ints

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def spatial_pads(
    pad_type: str, pad: Sequence[int] | None, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """(before, after) of each spatial dimension; `kernel` is the dilated extent. `same` gives ceil(size / stride) outputs, the odd one after."""
    if pad_type == "valid":
        return [(0, 0)] * len(sizes)
    if pad_type == "custom":
        flat = list(pad) if pad is not None else [0] * (2 * len(sizes))
        return [(flat[2 * i], flat[2 * i + 1]) for i in range(len(sizes))]
    if pad_type not in ("same", "same_lower"):
        raise ValueError(f"no pad_type {pad_type}")
    totals = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(sizes, kernel, strides, strict=True)]
    halves = [(t // 2, t - t // 2) for t in totals]
    return halves if pad_type == "same" else [(after, before) for before, after in halves]


def padded(x: Tensor, pads: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor:
    """X with the trailing dimensions padded (or, by negative numbers, cropped)."""
    if not any(before or after for before, after in pads):
        return x
    return F.pad(x, [n for pair in reversed(pads) for n in pair], value=value)


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    strides: Any = None,
    pad_type: str = "valid",
    pad: Any = None,
    dilations: Any = None,
    groups: Any = 1,
) -> Tensor:
    """Convolution of x [n, c, *spatial] with weight [out, c / groups, *kernel]."""
    rank = x.dim() - 2
    stride, dilation = _per_axis(strides, rank), _per_axis(dilations, rank)
    extent = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    pads = spatial_pads(pad_type, None if pad is None else ints(pad), x.shape[2:], extent, stride)
    symmetric = all(before == after for before, after in pads)
    if not symmetric:
        x = padded(x, pads)
    padding = [before for before, _ in pads] if symmetric else 0
    return CONV[rank](x, weight, bias, stride, padding, dilation, integer(groups))


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    pad: Any = None,
    output_shape: Any = None,
    pad_type: str = "valid",
    strides: Any = None,
    dilations: Any = None,
    groups: Any = 1,
) -> Tensor:
    """Transposed convolution with weight [in, out / groups, *kernel]: the full result, cropped by the padding to the stated or implied size."""
    rank = x.dim() - 2
    stride, dilation = _per_axis(strides, rank), _per_axis(dilations, rank)
    full = CONV_TRANSPOSE[rank](x, weight, None, stride, 0, 0, integer(groups), dilation)
    sizes = list(full.shape[2:])
    if pad_type == "custom":
        crops = spatial_pads("custom", None if pad is None else ints(pad), sizes, sizes, stride)
    elif pad_type in ("same", "same_lower"):
        wanted = ints(output_shape)[-rank:] if output_shape is not None else [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
        totals = [n - w for n, w in zip(sizes, wanted, strict=True)]
        crops = [(t // 2, t - t // 2) if pad_type == "same" else (t - t // 2, t // 2) for t in totals]
    else:
        crops = [(0, 0)] * rank
    if output_shape is not None:
        wanted = ints(output_shape)[-rank:]
        crops = [(before, n - before - w) for (before, _), n, w in zip(crops, sizes, wanted, strict=True)]
    out = padded(full, [(-before, -after) for before, after in crops])
    return out if bias is None else out + bias.reshape([1, -1] + [1] * rank)


def _per_axis(value: Any, rank: int) -> list[int]:
    return [1] * rank if value is None else ints(value)


OPERATORS = {"conv": conv, "conv_transpose": conv_transpose}
