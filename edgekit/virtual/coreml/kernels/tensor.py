"""Operators that make or search tensors: pad, fill, range, sort, cumulate."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)

from edgekit.virtual.coreml.kernels.arguments import Tensor, flag, integer, ints, number


def pad(x: Tensor, pad: Any, mode: str = "constant", constant_val: Any = 0.0) -> Tensor:
    """The last axes extended by (before, after) each: with a constant, mirrored without the edge, or with the edge repeated."""
    flat = ints(pad)
    pairs = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
    if mode == "constant":
        return F.pad(x, [n for pair in reversed(pairs) for n in pair], value=number(constant_val))
    if mode not in ("reflect", "replicate", "symmetric"):
        raise ValueError(f"no pad mode {mode}")
    for axis, (before, after) in enumerate(pairs, x.dim() - len(pairs)):
        if before or after:
            x = x.index_select(axis, _mirrored(x.shape[axis], before, after, mode))
    return x


def _mirrored(size: int, before: int, after: int, mode: str) -> Tensor:
    at = torch.arange(-before, size + after)
    if mode == "replicate":
        return at.clamp(0, size - 1)
    if mode == "reflect":
        period = max(2 * (size - 1), 1)
        return (size - 1) - ((at % period) - (size - 1)).abs()
    at = at % (2 * size)
    return torch.where(at < size, at, 2 * size - 1 - at)


def fill(shape: Any, value: Any = 0.0) -> Tensor:
    """A tensor of one value."""
    return torch.full(ints(shape), number(value))


def fill_like(ref_tensor: Tensor, value: Any = 0.0) -> Tensor:
    """A tensor of one value in another's shape."""
    return torch.full(list(ref_tensor.shape), number(value))


def range_1d(start: Any, end: Any, step: Any) -> Tensor:
    """Start, start + step ... before end."""
    return torch.arange(number(start), number(end), number(step))


def band_part(x: Tensor, lower: Any = -1, upper: Any = -1) -> Tensor:
    """Matrices with what is further than `lower` below or `upper` above the diagonal set to zero; a negative number keeps all."""
    down, up = integer(lower), integer(upper)
    distance = torch.arange(x.shape[-2])[:, None] - torch.arange(x.shape[-1])[None, :]
    kept = ((distance <= down) | (down < 0)) & ((-distance <= up) | (up < 0))
    return torch.where(kept, x, torch.zeros_like(x))


def cumsum(x: Tensor, axis: Any = 0, exclusive: Any = False, reverse: Any = False) -> Tensor:
    """Running sum along an axis, with or without the entry itself, from either end."""
    at = integer(axis)
    x = x.flip(at) if flag(reverse) else x
    total = x.cumsum(at)
    total = total - x if flag(exclusive) and not x.is_floating_point() else total
    if flag(exclusive) and x.is_floating_point():
        total = torch.cat([torch.zeros_like(x.narrow(at, 0, 1)), total.narrow(at, 0, x.shape[at] - 1)], at)
    return total.flip(at) if flag(reverse) else total


def topk(
    x: Tensor,
    k: Any = 1,
    axis: Any = -1,
    ascending: Any = False,
    sort: Any = True,
    return_indices: Any = True,
    output_indices_dtype: str = "int32",
) -> Tensor | tuple[Tensor, Tensor]:
    """The k largest (or smallest) entries along an axis, best first, and where they were; of equal ones the earlier."""
    del sort, output_indices_dtype
    values, indices = torch.sort(x, dim=integer(axis), descending=not flag(ascending), stable=True)
    best = values.narrow(integer(axis), 0, integer(k)), indices.narrow(integer(axis), 0, integer(k))
    return best if flag(return_indices) else best[0]


def argsort(x: Tensor, axis: Any = -1, ascending: Any = False) -> Tensor:
    """Positions of the entries in order, largest first unless ascending."""
    return torch.sort(x, dim=integer(axis), descending=not flag(ascending), stable=True)[1]


def one_hot(indices: Tensor, one_hot_vector_size: Any, axis: Any = -1, on_value: Any = 1, off_value: Any = 0) -> Tensor:
    """`on_value` at each index along a new axis, `off_value` elsewhere."""
    at = integer(axis)
    at = at + indices.dim() + 1 if at < 0 else at
    classes = torch.arange(integer(one_hot_vector_size)).reshape([-1] + [1] * (indices.dim() - at))
    hit = indices.unsqueeze(at) == classes
    return torch.where(hit, torch.as_tensor(number(on_value)), torch.as_tensor(number(off_value)))


def non_zero(x: Tensor) -> Tensor:
    """Positions [count, rank] of the entries that are not zero."""
    return torch.nonzero(x)


def shape(x: Tensor) -> Tensor:
    """Sizes as a vector."""
    return torch.tensor(list(x.shape), dtype=torch.int32)


OPERATORS = {
    "pad": pad,
    "fill": fill,
    "fill_like": fill_like,
    "range_1d": range_1d,
    "band_part": band_part,
    "cumsum": cumsum,
    "topk": topk,
    "argsort": argsort,
    "one_hot": one_hot,
    "non_zero": non_zero,
    "shape": shape,
}
