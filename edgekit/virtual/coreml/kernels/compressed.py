"""Compressed weights: operators over constants, run once when a program is prepared."""

from __future__ import annotations

import math
from typing import Any

import torch

from edgekit.virtual.coreml import packed
from edgekit.virtual.coreml.kernels.arguments import Tensor, along, integer, ints


def affine_dequantize(quantized_data: Tensor, zero_point: Tensor, scale: Tensor, axis: Any) -> Tensor:
    """Scale * (data - zero_point), per tensor or per channel of `axis`."""
    rank, at = quantized_data.dim(), integer(axis)
    return along(scale, rank, at) * (quantized_data.float() - along(zero_point.float(), rank, at))


def cast(source_val: Tensor, output_dtype: str) -> Tensor:
    """Half to single precision."""
    del output_dtype
    return source_val.float()


def lut_to_dense(indices: Tensor, lut: Tensor, shape: Any = None, vector_axis: Any = None) -> Tensor:
    """Values by index: a packed index stream and one table (iOS 16), or indices with tables per group, of scalars or vectors (iOS 18)."""
    if shape is not None:
        sizes = ints(shape)
        chosen = packed.bits(indices.numpy(), int(math.log2(lut.numel())), math.prod(sizes))
        return lut[torch.from_numpy(chosen).long()].reshape(sizes)
    return _looked_up(indices.long(), lut, None if vector_axis is None else integer(vector_axis))


def _looked_up(indices: Tensor, lut: Tensor, vector_axis: int | None) -> Tensor:
    """Tables [*groups, entries, vector] over indices whose axes the groups divide."""
    for axis in range(indices.dim()):
        lut = lut.repeat_interleave(indices.shape[axis] // lut.shape[axis], axis)
    width = lut.shape[-1]
    chosen = indices[..., None, None].expand([*indices.shape, 1, width])
    vectors = torch.gather(lut, -2, chosen).squeeze(-2)
    if width == 1 and vector_axis is None:
        return vectors.squeeze(-1)
    at = integer(vector_axis) % indices.dim()
    return vectors.movedim(-1, at + 1).flatten(at, at + 1)


def sparse_to_dense(nonzero_data: Tensor, mask: Tensor, shape: Any = None) -> Tensor:
    """Stored values where the mask is set, 0 elsewhere; the mask is a packed bit stream (iOS 16) or has the result's shape (iOS 18)."""
    if shape is not None:
        sizes = ints(shape)
        mask = torch.from_numpy(packed.bits(mask.numpy(), 1, math.prod(sizes))).reshape(sizes)
    out = torch.zeros(mask.shape, dtype=nonzero_data.dtype)
    out[mask.bool()] = nonzero_data.flatten()
    return out


def blockwise_shift_scale(data: Tensor, scale: Tensor, offset: Tensor | None = None) -> Tensor:
    """Scale * (data - offset), with scales per block along every axis."""
    shifted = data.float() if offset is None else data.float() - _blown_up(offset.float(), data.shape)
    return shifted * _blown_up(scale, data.shape)


def _blown_up(scale: Tensor, shape: Any) -> Tensor:
    for axis, size in enumerate(shape):
        scale = scale.repeat_interleave(size // scale.shape[axis], axis)
    return scale


def lut_to_sparse(indices_mask: Tensor, indices_nonzero_data: Tensor, lut: Tensor, vector_axis: Any = None) -> tuple[Tensor, Tensor]:
    """Mask and stored values of a sparse tensor whose entries are looked up."""
    axis = None if vector_axis is None else integer(vector_axis)
    dense = _looked_up(sparse_to_dense(indices_nonzero_data, indices_mask).long(), lut, axis)
    mask = indices_mask if axis is None else indices_mask.repeat_interleave(lut.shape[-1], axis)
    return mask, dense[mask.bool()]


def sparse_blockwise_shift_scale(data_mask: Tensor, nonzero_data: Tensor, scale: Tensor, offset: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mask and stored values of a sparse tensor whose entries are dequantized."""
    dense = blockwise_shift_scale(sparse_to_dense(nonzero_data, data_mask), scale, offset)
    return data_mask, dense[data_mask.bool()]


OPERATORS = {
    "constexpr_affine_dequantize": affine_dequantize,
    "constexpr_cast": cast,
    "constexpr_lut_to_dense": lut_to_dense,
    "constexpr_sparse_to_dense": sparse_to_dense,
    "constexpr_blockwise_shift_scale": blockwise_shift_scale,
    "constexpr_lut_to_sparse": lut_to_sparse,
    "constexpr_sparse_blockwise_shift_scale": sparse_blockwise_shift_scale,
}
