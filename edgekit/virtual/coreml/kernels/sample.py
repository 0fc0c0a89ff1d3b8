"""Sampling at given coordinates: boxes and free positions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)

from edgekit.virtual.coreml.kernels.arguments import Tensor, flag, integer, number

PADDINGS = {"constant": "zeros", "border": "border", "reflection": "reflection", "symmetric": "reflection"}
MIRRORS = {"reflection": 0.0, "symmetric": 0.5}
"""How far behind the middle of the last pixel its picture is mirrored; torch mirrors at the middles where corners are aligned, else at the edges."""


def resample(
    x: Tensor,
    coordinates: Tensor,
    sampling_mode: str,
    padding_mode: str,
    padding_value: Any = 0.0,
    coordinates_mode: str = "normalized_minus_one_to_one",
    align_corners: Any = False,
) -> Tensor:
    """X [b, c, h, w] sampled at coordinates [b, h2, w2, 2] given as (x, y)."""
    if padding_mode not in PADDINGS or (padding_mode == "constant" and number(padding_value) != 0):
        raise ValueError(f"padding_mode {padding_mode} with value {number(padding_value)} is not interpreted")
    where = _normalized(coordinates.float(), x, coordinates_mode, flag(align_corners))
    if MIRRORS.get(padding_mode) == (0.5 if flag(align_corners) else 0.0):
        where = _mirrored(where, x, MIRRORS[padding_mode], flag(align_corners))
    return F.grid_sample(x, where, sampling_mode, PADDINGS[padding_mode], flag(align_corners))


def affine(
    x: Tensor,
    transform_matrix: Tensor,
    output_height: Any,
    output_width: Any,
    sampling_mode: str = "bilinear",
    padding_mode: str = "constant",
    padding_value: Any = 0.0,
    coordinates_mode: str = "normalized_minus_one_to_one",
    align_corners: Any = False,
) -> Tensor:
    """X [b, c, h, w] warped: each output position, by the 2 x 3 matrix of its batch entry, gives the input position to sample."""
    if coordinates_mode != "normalized_minus_one_to_one":
        raise ValueError(f"affine with coordinates_mode {coordinates_mode} is not interpreted")
    theta = transform_matrix.float().reshape(-1, 2, 3).expand(x.shape[0], 2, 3)
    where = F.affine_grid(theta, [x.shape[0], x.shape[1], integer(output_height), integer(output_width)], flag(align_corners))
    return resample(x, where, sampling_mode, padding_mode, padding_value, coordinates_mode, align_corners)


def _normalized(at: Tensor, x: Tensor, mode: str, aligned: bool) -> Tensor:
    if mode == "normalized_minus_one_to_one":
        return at
    if mode == "normalized_zero_to_one":
        return at * 2 - 1
    size = torch.tensor([x.shape[-1], x.shape[-2]], dtype=torch.float32)
    return 2 * at / (size - 1).clamp(min=1) - 1 if aligned else (2 * at + 1) / size - 1


def _mirrored(at: Tensor, x: Tensor, behind: float, aligned: bool) -> Tensor:
    """Normalized coordinates mirrored into the picture, `behind` pixels after the middles of its outermost pixels."""
    size = torch.tensor([x.shape[-1], x.shape[-2]], dtype=torch.float32)
    pixels = (at + 1) * (size - 1) / 2 if aligned else ((at + 1) * size - 1) / 2
    span = (size - 1 + 2 * behind).clamp(min=1e-6)
    folded = (pixels + behind).abs() % (2 * span)
    pixels = (torch.where(folded > span, 2 * span - folded, folded) - behind).clamp(min=0).minimum(size - 1)
    return _normalized(pixels, x, "unnormalized", aligned)


def crop_resize(
    x: Tensor,
    boxes: Tensor | None = None,
    box_indices: Tensor | None = None,
    roi: Tensor | None = None,
    target_height: Any = 1,
    target_width: Any = 1,
    normalized_coordinates: Any = False,
    spatial_scale: Any = 1.0,
    box_coordinate_mode: str = "CORNERS_HEIGHT_FIRST",
    sampling_mode: str = "DEFAULT",
    pad_value: Any = 0.0,
) -> Tensor:
    """Boxes of x resized bilinearly. Only the corner-aligned sampling modes are interpreted: what the others sample is not documented."""
    if sampling_mode not in ("ALIGN_CORNERS", "STRICT_ALIGN_CORNERS"):
        raise ValueError(f"crop_resize with sampling_mode {sampling_mode} is not interpreted")
    corners, images = _boxes(x, boxes, box_indices, roi)
    corners = _corners(corners.float() * number(spatial_scale), box_coordinate_mode)
    if flag(normalized_coordinates):
        corners = corners * torch.tensor([x.shape[2] - 1, x.shape[3] - 1] * 2, dtype=torch.float32)
    size = integer(target_height), integer(target_width)
    patches = torch.stack([_patch(x[i], box, size, sampling_mode, number(pad_value)) for box, i in zip(corners, images, strict=True)])
    return patches if roi is None else patches.unsqueeze(1)


def _boxes(x: Tensor, boxes: Tensor | None, box_indices: Tensor | None, roi: Tensor | None) -> tuple[Tensor, list[int]]:
    if roi is not None:
        flat = roi.reshape(roi.shape[0], roi.shape[2])
        if flat.shape[1] == 5:
            return flat[:, 1:], flat[:, 0].long().tolist()
        if x.shape[0] != 1:
            raise ValueError("crop_resize of several images without image indices is not interpreted")
        return flat, [0] * len(flat)
    assert boxes is not None
    return boxes, list(range(len(boxes))) if box_indices is None else box_indices.long().tolist()


def _corners(boxes: Tensor, mode: str) -> Tensor:
    """Boxes as (top, left, bottom, right)."""
    if mode.endswith("WIDTH_FIRST"):
        boxes = boxes[:, [1, 0, 3, 2]]
    if mode.startswith("CORNERS"):
        return boxes
    center, half = boxes[:, :2], boxes[:, 2:] / 2
    return torch.cat([center - half, center + half], 1)


def _patch(image: Tensor, box: Tensor, size: tuple[int, int], mode: str, outside: float) -> Tensor:
    rows, columns = (_points(box[i], box[i + 2], n, mode) for i, n in enumerate(size))
    out = image
    for axis, points in ((1, rows), (2, columns)):
        out = _line(out, axis, points)
    inside = ((rows >= 0) & (rows <= image.shape[1] - 1))[:, None] & ((columns >= 0) & (columns <= image.shape[2] - 1))[None, :]
    return torch.where(inside, out, torch.full_like(out, outside))


def _points(start: Tensor, end: Tensor, out: int, mode: str) -> Tensor:
    if out == 1:
        return ((start + end) / 2 if mode == "ALIGN_CORNERS" else start).reshape(1)
    return start + torch.arange(out) * ((end - start) / (out - 1))


def _line(image: Tensor, axis: int, points: Tensor) -> Tensor:
    at = points.clamp(0, image.shape[axis] - 1)
    low = at.floor().long()
    high = (low + 1).clamp(max=image.shape[axis] - 1)
    shape = [1] * image.dim()
    shape[axis] = -1
    return torch.lerp(image.index_select(axis, low), image.index_select(axis, high), (at - low).reshape(shape))


OPERATORS = {"affine": affine, "resample": resample, "crop_resize": crop_resize}
