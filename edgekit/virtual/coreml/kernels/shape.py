"""Operators that move values without changing them: reshape, slice, join, split, reorder."""

from __future__ import annotations

import math
from typing import Any

import torch

from edgekit.virtual.coreml.kernels.arguments import Tensor, flag, integer, ints


def reshape(x: Tensor, shape: Any) -> Tensor:
    """The same values in another shape; 0 keeps a size, -1 takes what is left."""
    return x.reshape([x.shape[i] if size == 0 and i < x.dim() else size for i, size in enumerate(ints(shape))])


def reshape_like(x: Tensor, ref_tensors: tuple[Tensor, ...], begins: Any, ends: Any, end_masks: Any) -> Tensor:
    """The same values in a shape pieced together from other tensors' sizes."""
    sizes: list[int] = []
    for reference, begin, end, mask in zip(ref_tensors, begins, ends, end_masks, strict=True):
        sizes += list(reference.shape)[integer(begin) : None if flag(mask) else integer(end)]
    return x.reshape(sizes)


def expand_dims(x: Tensor, axes: Any) -> Tensor:
    """Axes of size 1 inserted at positions of the result."""
    rank = x.dim() + len(ints(axes))
    for axis in sorted(a % rank for a in ints(axes)):
        x = x.unsqueeze(axis)
    return x


def squeeze(x: Tensor, axes: Any = None) -> Tensor:
    """Axes of size 1 removed."""
    over = [i for i, n in enumerate(x.shape) if n == 1] if axes is None else [a % x.dim() for a in ints(axes)]
    if any(x.shape[axis] != 1 for axis in over):
        raise ValueError(f"axes {over} of {list(x.shape)} are not of size 1")
    return x.reshape([n for i, n in enumerate(x.shape) if i not in over])


def transpose(x: Tensor, perm: Any) -> Tensor:
    """Axes reordered."""
    return x.permute(ints(perm))


def flatten2d(x: Tensor, axis: Any = 1) -> Tensor:
    """A matrix: the axes before `axis` by those from it on."""
    at = integer(axis)
    at = at + x.dim() if at < 0 else at
    return x.reshape(math.prod(x.shape[:at]), math.prod(x.shape[at:]))


def slice_by_index(
    x: Tensor,
    begin: Any,
    end: Any,
    stride: Any = None,
    begin_mask: Any = None,
    end_mask: Any = None,
    squeeze_mask: Any = None,
) -> Tensor:
    """Slices as in numpy; a squeezed axis takes the one entry at `begin`."""
    ranges, squeezed = index_ranges(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)
    for axis, chosen in enumerate(ranges):
        x = _take(x, axis, chosen)
    return x.reshape([n for i, n in enumerate(x.shape) if not squeezed[i]])


def index_ranges(
    x: Tensor, begin: Any, end: Any, stride: Any = None, begin_mask: Any = None, end_mask: Any = None, squeeze_mask: Any = None
) -> tuple[list[range], list[bool]]:
    """The positions that a slice takes along each axis, and which axes it drops."""
    rank = x.dim()
    starts, stops = ints(begin), ints(end)
    steps = [1] * rank if stride is None else ints(stride)
    free_start, free_stop, squeezed = ([False] * rank if m is None else [bool(v) for v in ints(m)] for m in (begin_mask, end_mask, squeeze_mask))
    ranges = []
    for i, size in enumerate(x.shape):
        if squeezed[i]:
            at = 0 if free_start[i] else starts[i]
            at = at + size if at < 0 else at
            if not 0 <= at < size:
                raise ValueError(f"index {starts[i]} of {size} entries along axis {i}")
            ranges.append(range(at, at + 1))
        else:
            ranges.append(range(*slice(None if free_start[i] else starts[i], None if free_stop[i] else stops[i], steps[i]).indices(size)))
    return ranges, squeezed


def _take(x: Tensor, axis: int, chosen: range) -> Tensor:
    if chosen == range(x.shape[axis]):
        return x
    if chosen.step > 0:
        return x[(slice(None),) * axis + (slice(chosen.start, max(chosen.stop, chosen.start), chosen.step),)]
    return x.index_select(axis, torch.tensor(list(chosen), dtype=torch.long))


def slice_by_size(x: Tensor, begin: Any, size: Any) -> Tensor:
    """A box of `size` at `begin`; -1 reaches to the end."""
    for axis, (start, wanted) in enumerate(zip(ints(begin), ints(size), strict=True)):
        start = start + x.shape[axis] if start < 0 else start
        x = x.narrow(axis, start, x.shape[axis] - start if wanted == -1 else wanted)
    return x


def slice_update(
    x: Tensor,
    update: Tensor,
    begin: Any,
    end: Any,
    stride: Any = None,
    begin_mask: Any = None,
    end_mask: Any = None,
    squeeze_mask: Any = None,
) -> Tensor:
    """X with the slice replaced by `update`."""
    ranges, squeezed = index_ranges(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)
    out = x.clone()
    full = update.reshape([1 if squeezed[i] else len(r) for i, r in enumerate(ranges)])
    out[torch.meshgrid(*[torch.tensor(list(r), dtype=torch.long) for r in ranges], indexing="ij")] = full.to(x.dtype)
    return out


def concat(values: tuple[Tensor, ...], axis: Any, interleave: Any = False) -> Tensor:
    """Joined along an axis, one after another or entry by entry in turn. Scalars join to a vector."""
    parts = [v.reshape(1) if v.dim() == 0 else v for v in values]
    at = integer(axis) % parts[0].dim()
    if not flag(interleave):
        return torch.cat(parts, at)
    return torch.stack(parts, at + 1).flatten(at, at + 1)


def split(x: Tensor, axis: Any, num_splits: Any = None, split_sizes: Any = None) -> tuple[Tensor, ...]:
    """Cut along an axis, evenly or by sizes."""
    at = integer(axis)
    sizes = ints(split_sizes) if split_sizes is not None else [x.shape[at] // integer(num_splits)] * integer(num_splits)
    return tuple(torch.split(x, sizes, at))


def stack(values: tuple[Tensor, ...], axis: Any) -> Tensor:
    """Joined along a new axis."""
    return torch.stack(values, integer(axis))


def reverse(x: Tensor, axes: Any = None) -> Tensor:
    """Reversed along axes, or all."""
    return x.flip(list(range(x.dim())) if axes is None else ints(axes))


def reverse_sequence(x: Tensor, lengths: Any, seq_axis: Any = 0, batch_axis: Any = 0) -> Tensor:
    """The first `lengths[b]` entries of each batch entry reversed."""
    along, batch = integer(seq_axis) % x.dim(), integer(batch_axis) % x.dim()
    out = x.movedim([batch, along], [0, 1]).clone()
    for i, length in enumerate(ints(lengths)):
        out[i, :length] = out[i, :length].flip(0)
    return out.movedim([0, 1], [batch, along])


def tile(x: Tensor, reps: Any) -> Tensor:
    """Repeated along each axis."""
    return x.repeat(ints(reps))


def crop(x: Tensor, crop_height: Any, crop_width: Any) -> Tensor:
    """Rows and columns cut off at (start, end) of the last two axes."""
    (top, bottom), (left, right) = ints(crop_height), ints(crop_width)
    return x[..., top : x.shape[-2] - bottom, left : x.shape[-1] - right]


def sliding_windows(x: Tensor, axis: Any, size: Any, stride: Any = 1) -> Tensor:
    """All windows along an axis; the window's entries form the next axis."""
    at = integer(axis) % x.dim()
    return x.unfold(at, integer(size), integer(stride)).movedim(-1, at + 1)


def depth_to_space(x: Tensor, block_size: Any) -> Tensor:
    """Channels to blocks of pixels, the block's position being the outer part of the channel."""
    n, c, h, w = x.shape
    b = integer(block_size)
    return x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // (b * b), h * b, w * b)


def space_to_depth(x: Tensor, block_size: Any) -> Tensor:
    """The inverse of `depth_to_space`."""
    n, c, h, w = x.shape
    b = integer(block_size)
    return x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)


def pixel_shuffle(x: Tensor, upscale_factor: Any) -> Tensor:
    """Channels to blocks of pixels, the block's position being the inner part of the channel."""
    n, c, h, w = x.shape
    f = integer(upscale_factor)
    return x.reshape(n, c // (f * f), f, f, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, c // (f * f), h * f, w * f)


def pixel_unshuffle(x: Tensor, downscale_factor: Any) -> Tensor:
    """The inverse of `pixel_shuffle`."""
    n, c, h, w = x.shape
    f = integer(downscale_factor)
    return x.reshape(n, c, h // f, f, w // f, f).permute(0, 1, 3, 5, 2, 4).reshape(n, c * f * f, h // f, w // f)


def batch_to_space(x: Tensor, block_shape: Any, crops: Any) -> Tensor:
    """Batch entries to blocks of pixels, then cropped by ((top, bottom), (left, right))."""
    n, c, h, w = x.shape
    (bh, bw), (top, bottom, left, right) = ints(block_shape), ints(crops.flatten())
    out = x.reshape(bh, bw, n // (bh * bw), c, h, w).permute(2, 3, 4, 0, 5, 1).reshape(n // (bh * bw), c, h * bh, w * bw)
    return out[..., top : h * bh - bottom, left : w * bw - right]


def space_to_batch(x: Tensor, block_shape: Any, paddings: Any) -> Tensor:
    """Padded by ((top, bottom), (left, right)), then blocks of pixels to batch entries."""
    (bh, bw), (top, bottom, left, right) = ints(block_shape), ints(paddings.flatten())
    x = torch.nn.functional.pad(x, [left, right, top, bottom])
    n, c, h, w = x.shape
    return x.reshape(n, c, h // bh, bh, w // bw, bw).permute(3, 5, 0, 1, 2, 4).reshape(n * bh * bw, c, h // bh, w // bw)


OPERATORS = {
    "reshape": reshape,
    "reshape_like": reshape_like,
    "expand_dims": expand_dims,
    "squeeze": squeeze,
    "transpose": transpose,
    "flatten2d": flatten2d,
    "slice_by_index": slice_by_index,
    "slice_by_size": slice_by_size,
    "slice_update": slice_update,
    "concat": concat,
    "split": split,
    "stack": stack,
    "reverse": reverse,
    "reverse_sequence": reverse_sequence,
    "tile": tile,
    "crop": crop,
    "sliding_windows": sliding_windows,
    "depth_to_space": depth_to_space,
    "space_to_depth": space_to_depth,
    "pixel_shuffle": pixel_shuffle,
    "pixel_unshuffle": pixel_unshuffle,
    "batch_to_space": batch_to_space,
    "space_to_batch": space_to_batch,
}
