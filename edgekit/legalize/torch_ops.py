"""Rewrites of PyTorch operators that a converter or a delegate cannot take, into operators that all of them take. Each is exact.

A rule is plain PyTorch code with the operator's own arguments; the graph is traced through it again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from edgekit.formats._torch_program import layer_of, operator_name


@dataclasses.dataclass(frozen=True)
class Rule:
    """`lowered` takes the arguments of `operator` and computes the same; `applies` looks at a node's arguments (and sizes)."""

    operator: str
    applies: Callable[..., bool]
    lowered: Callable[..., Any]
    reason: str


def legalize(program: Any) -> tuple[Any, tuple[str, ...]]:
    """The program's module with every applicable rule applied, and one notice for each rewritten layer."""
    module = program.module()
    notices = []
    for node, rule in _matches(module.graph):
        notices.append(f"layer {layer_of(node)}: {rule.operator.removeprefix('aten::')} {rule.reason}")
        node.target = rule.lowered
    module.recompile()
    return module, tuple(notices)


def applies(program: Any) -> bool:
    """Whether `legalize` would rewrite anything."""
    return next(_matches(program.graph), None) is not None


def _matches(graph: Any) -> Iterator[tuple[Any, Rule]]:
    for node in graph.nodes:
        for rule in RULES:
            if operator_name(node) == rule.operator and rule.applies(*_sized(node.args), **_sized(node.kwargs)):
                yield node, rule


def _sized(arguments: Any) -> Any:
    """Arguments with graph nodes replaced by their (fake) tensors, so that `applies` can read sizes."""
    if isinstance(arguments, dict):
        return {name: _sized(value) for name, value in arguments.items()}
    if isinstance(arguments, (tuple, list)):
        return type(arguments)(_sized(value) for value in arguments)
    return getattr(arguments, "meta", {}).get("val", arguments)


def _each(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    sizes = (value,) * rank if isinstance(value, int) else tuple(value)
    return sizes * rank if len(sizes) == 1 else sizes


# --- transposed convolution -------------------------------------------------------------------------------------------------------------


def _transposed_needs_crop(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1
) -> bool:
    del x, bias, stride, groups
    rank = weight.dim() - 2
    return any(_each(padding, rank)) or any(_each(output_padding, rank)) or any(d != 1 for d in _each(dilation, rank))


def transposed_convolution(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1
) -> Any:
    """The full transposed convolution without padding, then rows and columns cut (padding) or appended (output padding).

    Output size of an axis: (in - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1 (PyTorch, ConvTranspose2d).
    """
    import torch

    rank = weight.dim() - 2
    stride, padding, output_padding = _each(stride, rank), _each(padding, rank), _each(output_padding, rank)
    kernel = _dilated(weight, _each(dilation, rank))
    full = getattr(torch.nn.functional, f"conv_transpose{rank}d")(x, kernel, None, stride=stride, groups=groups)
    for axis in range(rank):
        wanted = (x.shape[2 + axis] - 1) * stride[axis] + kernel.shape[2 + axis] - 2 * padding[axis] + output_padding[axis]
        missing = padding[axis] + wanted - full.shape[2 + axis]
        if missing > 0:
            full = torch.nn.functional.pad(full, [0, 0] * (rank - 1 - axis) + [0, missing])
        full = full.narrow(2 + axis, padding[axis], wanted)
    return full if bias is None else full + bias.reshape(1, -1, *[1] * rank)


def _dilated(weight: Any, dilation: Sequence[int]) -> Any:
    """The kernel with zeros between its taps."""
    for axis, step in enumerate(dilation, start=2):
        if step != 1:
            spread = weight.unsqueeze(axis + 1)
            spread = _pad_at(spread, axis + 1, step - 1).flatten(axis, axis + 1)
            weight = spread.narrow(axis, 0, (weight.shape[axis] - 1) * step + 1)
    return weight


def _pad_at(tensor: Any, axis: int, after: int) -> Any:
    import torch

    return torch.nn.functional.pad(tensor, [0, 0] * (tensor.dim() - 1 - axis) + [0, after])


def _convolution_needs_crop(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> bool:
    return transposed and _transposed_needs_crop(x, weight, bias, stride, padding, output_padding, groups, dilation)


def _convolution(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Any:
    del transposed
    return transposed_convolution(x, weight, bias, stride, padding, output_padding, groups, dilation)


# --- average pooling --------------------------------------------------------------------------------------------------------------------


def windows(size: int, count: int) -> list[tuple[int, int]]:
    """Start and end of each bin of an adaptive pool: floor(i * size / count) to ceil((i + 1) * size / count)."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _adaptive_uneven(x: Any, output_size: Any) -> bool:
    sizes = _each(output_size, 2)
    return any(x.shape[axis - 2] % sizes[axis] for axis in range(2))


def adaptive_average_pool(x: Any, output_size: Any) -> Any:
    """One plain average pool where all bins are equally large and spaced, else the mean of slices, axis by axis.

    Means of the rows' means are exact because all windows of one row have the same height.
    """
    import torch

    sizes = _each(output_size, 2)
    bins = [windows(x.shape[axis - 2], sizes[axis]) for axis in range(2)]
    regular = [_regular(each) for each in bins]
    if all(regular):
        kernel, stride = zip(*(r for r in regular if r), strict=True)
        return torch.nn.functional.avg_pool2d(x, list(kernel), list(stride))
    for axis, each in zip((-2, -1), bins, strict=True):
        if len(each) != x.shape[axis]:
            x = torch.cat([x.narrow(axis, start, end - start).mean(axis, keepdim=True) for start, end in each], axis)
    return x


def _regular(bins: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Kernel and stride, when one pool has exactly these windows."""
    lengths = {end - start for start, end in bins}
    steps = {after[0] - before[0] for before, after in itertools.pairwise(bins)} or {1}
    return (lengths.pop(), steps.pop()) if len(lengths) == len(steps) == 1 else None


def _excludes_padding(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None
) -> bool:
    del x, kernel, stride, ceil_mode
    return not count_include_pad and any(_each(padding, 2)) and divisor is None


def average_pool_excluding_padding(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None
) -> Any:
    """Zero padding, a plain average pool, and a multiplication by a constant: elements of the window over elements inside the image."""
    import torch

    del count_include_pad, divisor
    pool = torch.nn.functional.avg_pool2d
    kernel, padding = _each(kernel, 2), _each(padding, 2)
    stride = _each(stride or kernel, 2)
    counts = [_inside(x.shape[axis - 2], kernel[axis], stride[axis], padding[axis], ceil_mode) for axis in range(2)]
    after = [(len(counts[axis]) - 1) * stride[axis] + kernel[axis] - x.shape[axis - 2] - padding[axis] for axis in range(2)]
    padded = torch.nn.functional.pad(x, [padding[1], max(after[1], 0), padding[0], max(after[0], 0)])
    rows, columns = (torch.tensor([kernel[axis] / n for n in counts[axis]], dtype=x.dtype) for axis in range(2))
    return pool(padded, list(kernel), list(stride)) * (rows[:, None] * columns[None, :])


def _inside(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> list[int]:
    """For each window along an axis: how many of its elements lie inside the image (output size as PyTorch, AvgPool2d)."""
    count = (size + 2 * padding - kernel + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1
    starts = [i * stride - padding for i in range(count)]
    return [min(start + kernel, size) - max(start, 0) for start in starts]


_TRANSPOSED = "with padding: lowered to a full transposed convolution and a crop"
_UNEVEN = "to a size that does not divide its input: lowered to plain pools and slices"
_UNCOUNTED = "that does not count its padding: lowered to pad, plain pool and a constant factor"

RULES = (
    Rule("aten::conv_transpose1d", _transposed_needs_crop, transposed_convolution, _TRANSPOSED),
    Rule("aten::conv_transpose2d", _transposed_needs_crop, transposed_convolution, _TRANSPOSED),
    Rule("aten::convolution", _convolution_needs_crop, _convolution, _TRANSPOSED),
    Rule("aten::adaptive_avg_pool2d", _adaptive_uneven, adaptive_average_pool, _UNEVEN),
    Rule("aten::avg_pool2d", _excludes_padding, average_pool_excluding_padding, _UNCOUNTED),
)
