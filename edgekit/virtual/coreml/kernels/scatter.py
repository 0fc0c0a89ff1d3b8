"""Gather and scatter."""

from __future__ import annotations

import math
from typing import Any

import torch

from edgekit.virtual.coreml.kernels.arguments import Tensor, integer

REDUCTIONS = {"add": "sum", "sub": "sum", "mul": "prod", "div": "prod", "max": "amax", "min": "amin"}


def gather(x: Tensor, indices: Tensor, axis: Any = 0, batch_dims: Any = 0, validate_indices: Any = False) -> Tensor:
    """Slices of x along an axis, by index; the first `batch_dims` axes of both go together. Negative indices count from the end."""
    del validate_indices
    at, batched = integer(axis) % max(x.dim(), 1), integer(batch_dims)
    chosen = _wrapped(indices, x.shape[at])
    if batched == 0:
        return x.index_select(at, chosen.flatten()).reshape([*x.shape[:at], *indices.shape, *x.shape[at + 1 :]])
    head = list(x.shape[:batched])
    rows = x.reshape([math.prod(head), *x.shape[batched:]]), chosen.reshape([math.prod(head), *indices.shape[batched:]])
    out = torch.stack([gather(a, i, at - batched) for a, i in zip(*rows, strict=True)])
    return out.reshape([*head, *out.shape[1:]])


def gather_along_axis(x: Tensor, indices: Tensor, axis: Any = 0, validate_indices: Any = False) -> Tensor:
    """The entry at `indices` along an axis, all other positions equal."""
    del validate_indices
    return torch.gather(x, integer(axis), _wrapped(indices, x.shape[integer(axis)]))


def gather_nd(x: Tensor, indices: Tensor, batch_dims: Any = 0, validate_indices: Any = False) -> Tensor:
    """Slices of x at index vectors (the last axis of `indices`)."""
    del validate_indices
    batched = integer(batch_dims)
    if batched == 0:
        return x[tuple(_wrapped(part, x.shape[i]) for i, part in enumerate(indices.unbind(-1)))]
    head = list(x.shape[:batched])
    rows = x.reshape([math.prod(head), *x.shape[batched:]]), indices.reshape([math.prod(head), *indices.shape[batched:]])
    out = torch.stack([gather_nd(a, i) for a, i in zip(*rows, strict=True)])
    return out.reshape([*head, *out.shape[1:]])


def scatter(data: Tensor, indices: Tensor, updates: Tensor, axis: Any = 0, mode: str = "add", validate_indices: Any = False) -> Tensor:
    """Data with slices along an axis combined with `updates`."""
    del validate_indices
    at = integer(axis) % data.dim()
    chosen = _wrapped(indices, data.shape[at]).reshape(-1)
    where = torch.arange(data.numel()).reshape(data.shape).index_select(at, chosen)
    return _combine(data, where, updates.reshape(where.shape), mode)


def scatter_along_axis(data: Tensor, indices: Tensor, updates: Tensor, axis: Any = 0, mode: str = "add", validate_indices: Any = False) -> Tensor:
    """Data with the entries at `indices` along an axis combined with `updates`."""
    del validate_indices
    at = integer(axis) % data.dim()
    where = torch.gather(torch.arange(data.numel()).reshape(data.shape), at, _wrapped(indices, data.shape[at]))
    return _combine(data, where, updates, mode)


def scatter_nd(data: Tensor, indices: Tensor, updates: Tensor, mode: str = "add", validate_indices: Any = False) -> Tensor:
    """Data with the slices at index vectors (the last axis of `indices`) combined with `updates`."""
    del validate_indices
    positions = torch.arange(data.numel()).reshape(data.shape)
    where = positions[tuple(_wrapped(part, data.shape[i]) for i, part in enumerate(indices.unbind(-1)))]
    return _combine(data, where, updates.reshape(where.shape), mode)


def _combine(data: Tensor, where: Tensor, updates: Tensor, mode: str) -> Tensor:
    flat, at, new = data.flatten(), where.flatten(), updates.to(data.dtype).flatten()
    if mode == "update":
        out = flat.clone()
        out[at] = new
        return out.reshape(data.shape)
    if mode not in REDUCTIONS:
        raise ValueError(f"no scatter mode {mode}")
    if mode == "sub":
        new = -new
    if mode == "div":
        factors = torch.ones_like(flat).scatter_reduce(0, at, new, "prod")
        out = flat / factors
        return (out if data.is_floating_point() else out.trunc().to(data.dtype)).reshape(data.shape)
    return flat.scatter_reduce(0, at, new, REDUCTIONS[mode]).reshape(data.shape)


def _wrapped(indices: Tensor, size: int) -> Tensor:
    chosen = indices.long()
    return torch.where(chosen < 0, chosen + size, chosen)


OPERATORS = {
    "gather": gather,
    "gather_along_axis": gather_along_axis,
    "gather_nd": gather_nd,
    "scatter": scatter,
    "scatter_along_axis": scatter_along_axis,
    "scatter_nd": scatter_nd,
}
