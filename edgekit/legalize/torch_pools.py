"""Pools of PyTorch in plain pools, means, maxima and slices, which all runtimes have. Each is exact."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def each(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """A size for each of `rank` axes."""
    sizes = (value,) * rank if isinstance(value, int) else tuple(value)
    return sizes * rank if len(sizes) == 1 else sizes


def windows(size: int, count: int) -> list[tuple[int, int]]:
    """Start and end of each bin of an adaptive pool: floor(i * size / count) to ceil((i + 1) * size / count)."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def adaptive_uneven(x: Any, output_size: Any) -> bool:
    """Whether the bins of an adaptive pool differ in size."""
    sizes = each(output_size, 2)
    return any(x.shape[axis - 2] % sizes[axis] for axis in range(2))


def adaptive_average_pool(x: Any, output_size: Any) -> Any:
    """One plain average pool where all bins are equally large and spaced, else the mean of slices, axis by axis.

    Means of the rows' means are exact because all windows of one row have the same height.
    """
    import torch

    sizes = each(output_size, 2)
    bins = [windows(x.shape[axis - 2], sizes[axis]) for axis in range(2)]
    regular = [_regular(one) for one in bins]
    if all(regular):
        kernel, stride = zip(*(r for r in regular if r), strict=True)
        return torch.nn.functional.avg_pool2d(x, list(kernel), list(stride))
    for axis, one in zip((-2, -1), bins, strict=True):
        if len(one) != x.shape[axis]:
            x = torch.cat([x.narrow(axis, start, end - start).mean(axis, keepdim=True) for start, end in one], axis)
    return x


def adaptive_average_pool_3d(x: Any, output_size: Any) -> Any:
    """The mean of slices, axis by axis."""
    import torch

    for axis, size in enumerate(each(output_size, 3), start=x.dim() - 3):
        if size != x.shape[axis]:
            bins = windows(x.shape[axis], size)
            x = torch.cat([x.narrow(axis, start, end - start).mean(axis, keepdim=True) for start, end in bins], axis)
    return x


def _regular(bins: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Kernel and stride, when one pool has exactly these windows."""
    lengths = {end - start for start, end in bins}
    steps = {after[0] - before[0] for before, after in itertools.pairwise(bins)} or {1}
    return (lengths.pop(), steps.pop()) if len(lengths) == len(steps) == 1 else None


def always(*arguments: Any, **named: Any) -> bool:
    """Whatever an operator is given."""
    del arguments, named
    return True


def adaptive_max_pool(x: Any, output_size: Any) -> tuple[Any, None]:
    """The largest of slices, axis by axis; the places where they were found are not given."""
    sizes = (output_size,) if isinstance(output_size, int) else tuple(output_size)
    for axis, size in enumerate(sizes, start=x.dim() - len(sizes)):
        x = _largest(x, axis, windows(x.shape[axis], size))
    return x, None


def _largest(x: Any, axis: int, bins: Sequence[tuple[int, int]]) -> Any:
    import torch

    regular = _regular(bins)
    if len(bins) == 1:
        return x.amax(axis, keepdim=True)
    if regular == (1, 1):
        return x
    if regular and x.dim() == 4 and axis >= 2:
        kernel, stride = ([size if other == axis else 1 for other in (2, 3)] for size in regular)
        return torch.nn.functional.max_pool2d(x, kernel, stride)
    return torch.cat([x.narrow(axis, start, end - start).amax(axis, keepdim=True) for start, end in bins], axis)


def excludes_padding(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None
) -> bool:
    """Whether an average pool divides by the elements inside the image alone."""
    del x, kernel, stride, ceil_mode
    return not count_include_pad and any(each(padding, 2)) and divisor is None


def average_pool_excluding_padding(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None
) -> Any:
    """Zero padding, a plain average pool, and a multiplication by a constant: elements of the window over elements inside the image."""
    import torch

    if x.dim() == 3:  # without a batch
        return average_pool_excluding_padding(x[None], kernel, stride, padding, ceil_mode, count_include_pad, divisor)[0]
    del count_include_pad, divisor
    pool = torch.nn.functional.avg_pool2d
    kernel, padding = each(kernel, 2), each(padding, 2)
    stride = each(stride or kernel, 2)
    counts = [_inside(x.shape[axis - 2], kernel[axis], stride[axis], padding[axis], ceil_mode) for axis in range(2)]
    after = [(len(counts[axis]) - 1) * stride[axis] + kernel[axis] - x.shape[axis - 2] - padding[axis] for axis in range(2)]
    padded = torch.nn.functional.pad(x, [padding[1], max(after[1], 0), padding[0], max(after[0], 0)])
    rows, columns = (torch.tensor([kernel[axis] / n for n in counts[axis]], dtype=x.dtype) for axis in range(2))
    return pool(padded, list(kernel), list(stride)) * (rows[:, None] * columns[None, :])


def count(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """Windows of a pool along an axis (output size as PyTorch, AvgPool2d)."""
    found = (size + 2 * padding - kernel + (stride - 1 if ceil_mode else 0)) // stride + 1
    return found - 1 if ceil_mode and (found - 1) * stride >= size + padding else found


def _inside(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> list[int]:
    """For each window along an axis: how many of its elements lie inside the image."""
    starts = [i * stride - padding for i in range(count(size, kernel, stride, padding, ceil_mode))]
    return [min(start + kernel, size) - max(start, 0) for start in starts]
