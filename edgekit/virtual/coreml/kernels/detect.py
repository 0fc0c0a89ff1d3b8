"""Operators of detectors."""

from __future__ import annotations

from typing import Any

import torch

from edgekit.virtual.coreml.kernels.arguments import Tensor, flag, integer, number


def non_maximum_suppression(
    boxes: Tensor, scores: Tensor, iou_threshold: Any, max_boxes: Any, score_threshold: Any = None, per_class_suppression: Any = False
) -> tuple[Tensor, ...]:
    """Boxes (x, y of the center, width, height) in descending order of their best score, without those that overlap an earlier one by more.

    iOS 15 and 16: [n, boxes, 4] and [n, boxes, classes], with `score_threshold`, and the count of survivors as the fourth result. From iOS 17 on
    boxes are last, and there are three results. What is left of `max_boxes` is 0, its indices -1.
    """
    older = score_threshold is not None
    rows, classes = (boxes, scores) if older else (boxes.transpose(1, 2), scores.transpose(1, 2))
    count, least = integer(max_boxes), number(score_threshold) if older else float("-inf")
    made = [
        _survivors(box, score, number(iou_threshold), least, count, flag(per_class_suppression)) for box, score in zip(rows, classes, strict=True)
    ]
    padded = [torch.cat([kept, kept.new_full((count - len(kept),), -1)]) for kept in made]
    results = [torch.stack([_picked(source, kept, count) for source, kept in zip(part, made, strict=True)]) for part in (rows, classes)]
    if older:
        return (*results, torch.stack(padded), torch.tensor([len(kept) for kept in made]))
    return (*(result.transpose(1, 2) for result in results), torch.stack(padded))


def _survivors(boxes: Tensor, scores: Tensor, overlap: float, least: float, count: int, per_class: bool) -> Tensor:
    """Indices of at most `count` boxes [boxes, 4]."""
    best, kind = scores.max(dim=-1)
    shared = _overlaps(boxes) > overlap
    if per_class:
        shared &= kind[:, None] == kind[None, :]
    kept: list[int] = []
    for index in torch.argsort(best, descending=True, stable=True).tolist():
        if len(kept) < count and float(best[index]) > least and not any(bool(shared[index, earlier]) for earlier in kept):
            kept.append(index)
    return torch.tensor(kept, dtype=torch.int64)


def _overlaps(boxes: Tensor) -> Tensor:
    """Intersection over union of every pair, 0 where a box has no area."""
    center, size = boxes[:, :2], boxes[:, 2:]
    low, high = center - size / 2, center + size / 2
    sides = (torch.minimum(high[:, None], high[None]) - torch.maximum(low[:, None], low[None])).clamp(min=0)
    inside, area = sides.prod(-1), size.prod(-1)
    union = area[:, None] + area[None] - inside
    return torch.where(union > 0, inside / union, 0.0)


def _picked(source: Tensor, kept: Tensor, count: int) -> Tensor:
    return torch.cat([source[kept], source.new_zeros((count - len(kept), source.shape[-1]))])


OPERATORS = {"non_maximum_suppression": non_maximum_suppression}
