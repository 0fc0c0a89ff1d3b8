"""Rewrites of PyTorch operators that gather, scatter, or reduce along an axis, for Core ML. Each is exact."""

from __future__ import annotations

import itertools
from typing import Any

from edgekit.legalize.torch_ops import Rule
from edgekit.legalize.torch_pools import always


def product_along(x: Any, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The product by halves: of each pair, then of each pair of those."""
    import torch

    x = x if dtype is None else x.to(dtype)
    axis, shape = (0, [1] * x.dim()) if dim is None else (dim % x.dim(), None)
    x = x.flatten() if dim is None else x
    while (size := x.shape[axis]) > 1:
        half = size // 2
        pairs = x.narrow(axis, 0, half) * x.narrow(axis, half, half)
        x = torch.cat([pairs, x.narrow(axis, 2 * half, 1)], axis) if size % 2 else pairs
    if shape is not None:
        return x.reshape(shape) if keepdim else x.squeeze(0)  # coremltools makes a reshape to no axes one of an axis
    return x if keepdim else x.squeeze(axis)


def _has_elements(x: Any, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> bool:
    del keepdim
    single = x.is_floating_point() or dtype is not None  # of integers it is an int64
    return single and x.dim() > 0 and (x.numel() if dim is None else x.shape[dim]) > 0


def extreme_so_far(name: str) -> Any:
    """`cummax` or `cummin`: the larger of each value and those 1, 2, 4 ... places before it, and where the last such value is."""

    def lowered(x: Any, dim: int) -> tuple[Any, Any]:
        import torch

        values = _doubled(x, dim, torch.maximum if name == "cummax" else torch.minimum)
        shape = [x.shape[dim] if axis == dim % x.dim() else 1 for axis in range(x.dim())]
        places = torch.arange(x.shape[dim], dtype=torch.int32).reshape(shape)
        found = torch.where(x == values, places, torch.zeros_like(places))
        return values, _doubled(found, dim, torch.maximum).to(torch.int64)

    return lowered


def _doubled(x: Any, dim: int, better: Any) -> Any:
    import torch

    step, size = 1, x.shape[dim]
    while step < size:
        x = torch.cat([x.narrow(dim, 0, step), better(x.narrow(dim, step, size - step), x.narrow(dim, 0, size - step))], dim)
        step *= 2
    return x


def embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Any, ...]:
    """Rows of the table times a matrix that is 1 where a row is of a bag; for `max`, the largest of a bag's rows."""
    import torch

    del scale_grad_by_freq, sparse  # of training alone
    ends = offsets[1:] if include_last_offset else torch.cat([offsets[1:], torch.full_like(offsets[:1], indices.shape[0])])
    starts, places = (offsets[:-1] if include_last_offset else offsets), torch.arange(indices.shape[0])
    inside = (places >= starts[:, None]) & (places < ends[:, None])
    if padding_idx is not None and padding_idx >= 0:
        inside = inside & (indices != padding_idx)
    rows, share = weight[indices], inside.to(weight.dtype)
    if mode == 2:
        least = rows.amin(0)
        largest = torch.where(inside[:, :, None], rows[None], least).amax(1)
        return (largest * share.amax(1)[:, None],) * 4
    rows = rows if per_sample_weights is None else rows * per_sample_weights[:, None]
    total = share @ rows
    return (total / share.sum(1).clamp(min=1)[:, None] if mode == 1 else total,) * 4


def scatter_reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    """As PyTorch's, with what is there before: where it is not to count, what is put there first counts nothing. Means are sums over counts."""
    import torch

    src = _part(src, index)
    if not include_self:
        x = x.scatter(dim, index, src if reduce in ("amax", "amin") else torch.full_like(src, 1.0 if reduce == "prod" else 0.0))
    if reduce == "mean":
        counts = (torch.ones_like(x) if include_self else torch.zeros_like(x)).scatter_add(dim, index, torch.ones_like(src))
        return x.scatter_add(dim, index, src) / counts.clamp(min=1)
    return x.scatter_reduce(dim, index, src, reduce)


def _part(src: Any, index: Any) -> Any:
    for axis in range(index.dim()):
        src = src.narrow(axis, 0, index.shape[axis])
    return src


def _not_plain(x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> bool:
    del x, dim
    return reduce == "mean" or not include_self or src.shape != index.shape


NEAREST, BICUBIC = 1, 2
ZEROS, BORDER, REFLECTION = range(3)


def _is_bicubic(x: Any, grid: Any, mode: int, *others: Any) -> bool:
    del grid, others
    return mode == BICUBIC and x.dim() == 4


def sample_bicubic(x: Any, grid: Any, mode: int, padding: int, aligned: bool) -> Any:
    """Sixteen pixels about each place, gathered and weighed by Keys' cubic with a = -0.75, which is PyTorch's."""
    import torch

    del mode
    batch, channels, height, width = x.shape
    at = [((part + 1) * (size - 1) if aligned else (part + 1) * size - 1) / 2 for part, size in zip(grid.unbind(-1), (width, height), strict=True)]
    corners = [part.floor() for part in at]
    weights = [_cubic(part - corner) for part, corner in zip(at, corners, strict=True)]
    flat, made = x.flatten(2), []
    for row, column in itertools.product(range(4), range(4)):
        across, in_width = _placed(corners[0] + column - 1, width, padding, aligned)
        down, in_height = _placed(corners[1] + row - 1, height, padding, aligned)
        places = down.to(torch.int64) * width + across.to(torch.int64)  # as integers: half precision cannot count so far
        share = weights[0][column] * weights[1][row] * in_width * in_height
        taken = flat.gather(2, places.flatten(1)[:, None].expand(batch, channels, -1))
        made.append(taken.reshape(batch, channels, *grid.shape[1:3]) * share[:, None])
    return sum(made[1:], made[0])


def _cubic(t: Any) -> list[Any]:
    """Weights of the pixels before, at, behind, and beyond a place `t` behind its corner (Keys 1981)."""
    a = -0.75

    def near(s: Any) -> Any:
        return ((a + 2) * s - (a + 3)) * s * s + 1

    def far(s: Any) -> Any:
        return ((a * s - 5 * a) * s + 8 * a) * s - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _placed(place: Any, size: int, padding: int, aligned: bool) -> tuple[Any, Any]:
    """A whole number inside 0 ... size - 1, and 1 where what is there counts, else 0."""
    if padding == REFLECTION:
        low, span = (0.0, size - 1.0) if aligned else (-0.5, float(size))
        turned = (place - low).abs() % (2 * max(span, 1.0))
        place = (span - (turned - span).abs() + low) if span > 0 else place * 0
    inside = ((place >= 0) & (place <= size - 1)).to(place.dtype) if padding == ZEROS else place * 0 + 1
    return place.clamp(0, size - 1), inside


RULES = (
    Rule("aten::prod", _has_elements, product_along, "lowered to products of halves"),
    *(Rule(f"aten::{name}", always, extreme_so_far(name), "lowered to comparisons with 1, 2, 4 ... places before") for name in ("cummax", "cummin")),
    Rule("aten::embedding_bag", always, embedding_bag, "lowered to a product of rows with their bags", first_only=True),
    Rule("aten::scatter_reduce", _not_plain, scatter_reduce, "lowered to scatters"),
    Rule("aten::grid_sampler", _is_bicubic, sample_bicubic, "by cubics: lowered to sixteen weighed gathers"),
    Rule("aten::grid_sampler_2d", _is_bicubic, sample_bicubic, "by cubics: lowered to sixteen weighed gathers"),
)
"""For coremltools."""
