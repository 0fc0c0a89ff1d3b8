"""Rewrites of PyTorch operators for Core ML: what coremltools refuses, or makes other values of. Each is exact."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

from edgekit.legalize import torch_elementwise, torch_gathered, torch_ops, torch_pools, torch_resizes
from edgekit.legalize.torch_ops import Rule
from edgekit.legalize.torch_pools import always, each


def _wraps_or_crops(x: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> bool:
    del x, value
    return mode == "circular" or (mode == "constant" and min(pad) < 0)


def padding(x: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Circular padding as what lies at the other end, joined on; negative padding as a crop before the rest. `pad` begins at the last axis."""
    import torch

    sides = [(x.dim() - 1 - place // 2, pad[place], pad[place + 1]) for place in range(0, len(pad), 2)]
    for axis, before, after in sides:
        size = x.shape[axis]
        if mode == "circular":
            parts = [x.narrow(axis, size - before, before)] if before > 0 else []
            x = torch.cat([*parts, x, x.narrow(axis, 0, after)], axis) if after > 0 else torch.cat([*parts, x], axis)
        x = x.narrow(axis, max(-before, 0), x.shape[axis] - max(-before, 0) - max(-after, 0))
    if mode == "circular":
        return x
    return torch.nn.functional.pad(x, [max(size, 0) for size in pad], mode, value)


def _divides_otherwise(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None
) -> bool:
    del x, kernel, stride, padding, ceil_mode, count_include_pad
    return divisor is not None


def pool_with_divisor(rank: int) -> Any:
    """Average pools of `rank` axes that divide by a number of their own: zero padding, a plain pool, and a factor."""

    def pool(x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, counted: bool = True, divisor: int = 1) -> Any:
        import torch

        del counted
        kernel, padding = each(kernel, rank), each(padding, rank)
        stride = each(stride or kernel, rank)
        pads = []
        for axis in reversed(range(rank)):
            size = x.shape[axis - rank]
            count = torch_pools.count(size, kernel[axis], stride[axis], padding[axis], ceil_mode)
            pads += [padding[axis], max(0, (count - 1) * stride[axis] + kernel[axis] - size - padding[axis])]
        plain = getattr(torch.nn.functional, f"avg_pool{rank}d")
        return plain(torch.nn.functional.pad(x, pads), list(kernel), list(stride)) * (math.prod(kernel) / divisor)

    return pool


def _is_dilated(x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> bool:
    del x, kernel, stride, padding, ceil_mode
    return any(step != 1 for step in each(dilation, 2))


def dilated_max_pool(x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
    """The largest of selections, one for each tap of the window, axis by axis; a tap outside the image selects what another one does."""
    import torch

    kernel, padding, dilation = each(kernel, 2), each(padding, 2), each(dilation, 2)
    stride = each(stride or kernel, 2)
    for axis in range(2):
        size, step = x.shape[axis - 2], dilation[axis]
        windows = torch_pools.count(size, (kernel[axis] - 1) * step + 1, stride[axis], padding[axis], ceil_mode)
        starts = [place * stride[axis] - padding[axis] for place in range(windows)]
        inside = [[at for at in range(start, start + kernel[axis] * step, step) if 0 <= at < size] for start in starts]
        taps = [[found[min(tap, len(found) - 1)] for found in inside] for tap in range(max(map(len, inside)))]
        selected = [x.index_select(axis - 2, torch.tensor(tap)) for tap in taps]
        x = selected[0]
        for other in selected[1:]:
            x = torch.maximum(x, other)
    return x


def _gathers_from_more(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> bool:
    del sparse_grad
    return any(axis != dim % x.dim() and x.shape[axis] != index.shape[axis] for axis in range(x.dim()))


def gather(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    """Only the part that the indices reach along the other axes is gathered from."""
    del sparse_grad
    for axis in range(x.dim()):
        if axis != dim % x.dim():
            x = x.narrow(axis, 0, index.shape[axis])
    return x.gather(dim, index)


def _of_all(x: Any, dim: int | None = None, keepdim: bool = False) -> bool:
    del x, keepdim
    return dim is None


def place_of(name: str) -> Any:
    """`argmax` or `argmin` of all elements, in their order."""

    def find(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        del dim
        found = getattr(x.flatten(), name)(0)
        return found.reshape([1] * x.dim()) if keepdim else found

    return find


def _has_ellipsis(equation: str, operands: Sequence[Any], *, path: Any = None) -> bool:
    del operands, path
    return "..." in equation


def einsum(equation: str, operands: Sequence[Any], *, path: Any = None) -> Any:
    """The equation with letters of their own for the axes behind an ellipsis; operands of fewer axes get axes of 1 in front."""
    import torch

    del path
    equation = equation.replace(" ", "")
    read, _, result = equation.partition("->")
    terms = read.split(",")
    ranks = [operand.dim() - len(term.replace("...", "")) if "..." in term else 0 for term, operand in zip(terms, operands, strict=True)]
    letters = [letter for letter in string.ascii_letters if letter not in equation][: max(ranks)]
    made = []
    for place, (term, rank, operand) in enumerate(zip(terms, ranks, operands, strict=True)):
        at = term.find("...")
        shape = (*operand.shape[:at], *[1] * (len(letters) - rank), *operand.shape[at:]) if at >= 0 else operand.shape
        made.append(operand.reshape(shape))
        terms[place] = term.replace("...", "".join(letters))
    if "->" not in equation:
        once = sorted(letter for letter in set(read) - set(",.") if read.count(letter) == 1)
        result = "..." + "".join(once)
    return torch.einsum(f"{','.join(terms)}->{result.replace('...', ''.join(letters))}", *made)


def _is_deep(x: Any, *others: Any, **named: Any) -> bool:
    del others, named
    return bool(x.dim() > 4)


def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True) -> Any:
    """Over volumes: their axes as one."""
    import torch

    del cudnn_enabled
    return torch.nn.functional.group_norm(x.flatten(2), groups, weight, bias, eps).reshape(x.shape)


def _has_statistics(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, of_input: bool, *others: Any) -> bool:
    del x, weight, bias, mean, variance, others
    return not of_input


def instance_norm(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, of_input: bool, momentum: float, eps: float, *others: Any) -> Any:
    """By statistics that were kept, it is what batch normalization is."""
    import torch

    del of_input, others
    return torch.nn.functional.batch_norm(x, mean, variance, weight, bias, False, momentum, eps)


LEAST_SIZE = 2.0**-6


def rms_norm(x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    """Of x over its largest size, so that half precision holds the squares; the epsilon is divided by its square. coremltools leaves it as it is."""
    import torch

    axes = tuple(range(-len(shape), 0))
    size = x.abs().amax(axes, keepdim=True).clamp(min=LEAST_SIZE)
    small = x / size
    least = torch.finfo(x.dtype).eps if eps is None else eps
    made = small * torch.rsqrt((small * small).mean(axes, keepdim=True) + least / (size * size))
    return made if weight is None else made * weight


def _has_no_axes(x: Any, dim: Any = None, *others: Any, **named: Any) -> bool:
    del x, others, named
    return dim is None or isinstance(dim, bool)


def spread(name: str) -> Any:
    """`var` or `std` over all axes, by name of each; the second argument of the older form is whether it is unbiased."""

    def lowered(x: Any, dim: Any = None, *, unbiased: bool = True, correction: float | None = None, keepdim: bool = False) -> Any:
        unbiased = dim if isinstance(dim, bool) else unbiased
        divided = (1 if unbiased else 0) if correction is None else correction
        return getattr(x, name)(tuple(range(x.dim())), correction=divided, keepdim=keepdim)

    return lowered


def _has_output_padding(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1
) -> bool:
    del x, bias, stride, padding, dilation
    return any(each(output_padding, weight.dim() - 2)) and (groups == 1 or weight.dim() < 5)


def index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    """The axis in front, and its rows put in place."""
    return x.movedim(dim, 0).index_put((index,), source.movedim(dim, 0)).movedim(0, dim)


def index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Any:
    """The axis in front, and its rows added in place."""
    return x.movedim(dim, 0).index_put((index,), source.movedim(dim, 0) * alpha, accumulate=True).movedim(0, dim)


_KEPT = ("upsample_nearest2d", "upsample_bilinear2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "adaptive_avg_pool3d")
_SMOOTHED = "lowered to products with its weights"
_APPENDED = "with output padding: lowered to one without, and a crop"
_JOINED = "lowered to joined or cropped parts"
_SCALED = "with a divisor lowered to a plain pool and a factor"

RULES = (
    *(rule for rule in torch_ops.RULES if rule.operator.removeprefix("aten::") in _KEPT),
    Rule("aten::_upsample_nearest_exact2d", torch_resizes.any_size, torch_resizes.nearest_exact, "lowered to selections of rows and columns"),
    Rule("aten::upsample_bicubic2d", always, torch_resizes.smoothed("upsample_bicubic2d"), _SMOOTHED),
    torch_ops.SHARED_HEADS,
    Rule("aten::pad", _wraps_or_crops, padding, _JOINED),
    *(Rule(f"aten::avg_pool{rank}d", _divides_otherwise, pool_with_divisor(rank), _SCALED) for rank in (2, 3)),
    Rule("aten::max_pool2d", _is_dilated, dilated_max_pool, "that is dilated: lowered to the largest of selections"),
    Rule("aten::gather", _gathers_from_more, gather, "by fewer indices than elements: lowered to a gather from a part"),
    *(Rule(f"aten::{name}", _of_all, place_of(name), "of all elements: lowered to one of a vector") for name in ("argmax", "argmin")),
    Rule("aten::einsum", _has_ellipsis, einsum, "with an ellipsis: its axes were written out"),
    Rule("aten::index_add", always, index_add, "lowered to rows added in place"),
    Rule("aten::index_copy", always, index_copy, "lowered to rows put in place"),
    *(Rule(f"aten::conv_transpose{rank}d", _has_output_padding, torch_ops.transposed_convolution, _APPENDED) for rank in (1, 2, 3)),
    Rule("aten::instance_norm", _has_statistics, instance_norm, "by kept statistics: it is a batch normalization"),
    Rule("aten::rms_norm", always, rms_norm, "written out, with its own epsilon"),
    *(Rule(f"aten::{name}", _has_no_axes, spread(name), "of all elements: every axis named") for name in ("var", "std")),
    *torch_elementwise.RULES,
    *torch_gathered.RULES,
    Rule("aten::group_norm", _is_deep, group_norm, "of volumes: lowered to one of a single axis"),
)
"""What coremltools refuses, or makes other values of."""
