"""Resizing of the last two axes, by the sampling grids of Apple's operator reference."""

from __future__ import annotations

import math
from typing import Any

import torch

from edgekit.virtual.coreml.kernels.arguments import Tensor, flag, integer, ints, number


def grid(size: int, out: int, sampling_mode: str, scale: float | None = None) -> Tensor:
    """Positions in the input (float64 [out]) that the outputs sample, within 0 and size - 1."""
    at = torch.arange(out, dtype=torch.float64)
    spacing = size / out if scale is None else scale
    if sampling_mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        if out == 1:
            return torch.full((1,), (size - 1) / 2 if sampling_mode == "ALIGN_CORNERS" else 0.0, dtype=torch.float64)
        points = at * ((size - 1) / (out - 1))
    elif sampling_mode == "DEFAULT":
        points = at * spacing
    elif sampling_mode == "OFFSET_CORNERS":
        points = (at + 0.5) * (max(1, size - 1) / out)
    elif sampling_mode == "UNALIGN_CORNERS":
        points = (at + 0.5) * spacing - 0.5
    else:
        raise ValueError(f"no sampling mode {sampling_mode}")
    return points.clamp(0, size - 1)


def linear_along(x: Tensor, axis: int, points: Tensor) -> Tensor:
    """X sampled along an axis at fractional positions, linearly."""
    low = points.floor().long()
    high = (low + 1).clamp(max=x.shape[axis] - 1)
    shape = [1] * x.dim()
    shape[axis] = -1
    part = (points - low).to(x.dtype).reshape(shape)
    return torch.lerp(x.index_select(axis, low), x.index_select(axis, high), part)


def nearest_along(x: Tensor, axis: int, out: int, sampling_mode: str) -> Tensor:
    """X sampled along an axis at the nearest position.

    `DEFAULT` takes the input pixel that holds the output pixel's center. So does TensorFlow, whose operator coremltools maps here, and it gives
    the result in Apple's test of the operator; the reference does not say. The other modes round their grid half up.
    """
    size = x.shape[axis]
    if sampling_mode == "DEFAULT":
        return x.index_select(axis, (2 * torch.arange(out) + 1) * size // (2 * out))
    return x.index_select(axis, (grid(size, out, sampling_mode) + 0.5).floor().long().clamp(0, size - 1))


def resize_bilinear(x: Tensor, target_size_height: Any = 1, target_size_width: Any = 1, sampling_mode: str = "DEFAULT") -> Tensor:
    """Bilinear to a size."""
    return _bilinear(x, integer(target_size_height), integer(target_size_width), sampling_mode)


def resize_nearest_neighbor(x: Tensor, target_size_height: Any, target_size_width: Any) -> Tensor:
    """Nearest to a size, by pixel centers: input row = floor((output row + 0.5) * input rows / output rows)."""
    return nearest_along(nearest_along(x, x.dim() - 2, integer(target_size_height), "DEFAULT"), x.dim() - 1, integer(target_size_width), "DEFAULT")


def upsample_bilinear(
    x: Tensor, scale_factor_height: Any = 1, scale_factor_width: Any = 1, align_corners: Any = True, half_pixel_centers: Any = None
) -> Tensor:
    """Bilinear by factors; the factor that counts is output size over input size."""
    height, width = _scaled(x, scale_factor_height, scale_factor_width)
    aligned = flag(align_corners)
    centered = (not aligned) if half_pixel_centers is None else flag(half_pixel_centers)
    return _bilinear(x, height, width, "STRICT_ALIGN_CORNERS" if aligned else "UNALIGN_CORNERS" if centered else "DEFAULT")


def upsample_nearest_neighbor(x: Tensor, scale_factor_height: Any = 1, scale_factor_width: Any = 1) -> Tensor:
    """Nearest by factors, by pixel corners: input row = floor(output row * input rows / output rows)."""
    for axis, out in zip((x.dim() - 2, x.dim() - 1), _scaled(x, scale_factor_height, scale_factor_width), strict=True):
        x = x.index_select(axis, torch.arange(out) * x.shape[axis] // out)
    return x


def resize(x: Tensor, shape: Any, resized_dims: Any, interpolation_mode: str = "LINEAR", sampling_mode: str = "DEFAULT") -> Tensor:
    """The last axes to the last sizes of `shape`; 0 keeps a size."""
    count = integer(resized_dims)
    for axis, wanted in zip(range(x.dim() - count, x.dim()), ints(shape)[-count:], strict=True):
        size = wanted or x.shape[axis]
        if interpolation_mode == "NEAREST_NEIGHBOR":
            x = nearest_along(x, axis, size, sampling_mode)
        elif size != x.shape[axis] or sampling_mode == "OFFSET_CORNERS":
            x = linear_along(x, axis, grid(x.shape[axis], size, sampling_mode))
    return x


def _bilinear(x: Tensor, height: int, width: int, sampling_mode: str) -> Tensor:
    return resize(x, [height, width], 2, "LINEAR", sampling_mode)


def _scaled(x: Tensor, height: Any, width: Any) -> tuple[int, int]:
    return math.floor(x.shape[-2] * number(height)), math.floor(x.shape[-1] * number(width))


OPERATORS = {
    "resize": resize,
    "resize_bilinear": resize_bilinear,
    "resize_nearest_neighbor": resize_nearest_neighbor,
    "upsample_bilinear": upsample_bilinear,
    "upsample_nearest_neighbor": upsample_nearest_neighbor,
}
