"""Rewrites of PyTorch operators that a converter or a delegate cannot take, into operators that all of them take. Each is exact.

A rule is plain PyTorch code with the operator's own arguments; the graph is traced through it again.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from edgekit.formats._torch_program import layer_of, operator_name
from edgekit.legalize import torch_pools, torch_resizes
from edgekit.legalize.torch_pools import each


@dataclasses.dataclass(frozen=True)
class Rule:
    """`lowered` takes the arguments of `operator` and computes the same; `applies` looks at a node's arguments (and sizes).

    With `first_only` it computes the first result alone, and is used where no other is read.
    """

    operator: str
    applies: Callable[..., bool]
    lowered: Callable[..., Any]
    reason: str
    first_only: bool = False


def legalize(program: Any, rules: Sequence[Rule] | None = None) -> tuple[Any, tuple[str, ...]]:
    """The program's module with every applicable rule applied (those for LiteRT by default), and one notice for each rewritten layer."""
    module = program.module()
    notices = []
    for node, rule in _matches(module.graph, rules):
        notices.append(f"layer {layer_of(node)}: {rule.operator.removeprefix('aten::')} {rule.reason}")
        node.target = rule.lowered
    module.recompile()
    return module, tuple(notices)


def applies(program: Any, rules: Sequence[Rule] | None = None) -> bool:
    """Whether `legalize` would rewrite anything."""
    return next(_matches(program.graph, rules), None) is not None


def computes_double(program: Any) -> bool:
    """Whether any value of the program is float64."""
    import torch

    return any(getattr(node.meta.get("val"), "dtype", None) == torch.float64 for node in program.graph.nodes)


def single(module: Any) -> Any:
    """A copy of a program's module with float32 in place of float64 throughout: weights, constants, casts."""
    import torch

    def narrow(value: Any) -> Any:
        return torch.float32 if value is torch.float64 else value

    module = copy.deepcopy(module)  # its weights are the program's own
    for node in module.graph.nodes:
        node.args, node.kwargs = torch.fx.node.map_aggregate(node.args, narrow), torch.fx.node.map_aggregate(node.kwargs, narrow)
    for name, value in list(vars(module).items()):
        if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
            setattr(module, name, value.float())
    module.recompile()
    return module.float()


def _matches(graph: Any, rules: Sequence[Rule] | None) -> Iterator[tuple[Any, Rule]]:
    for node in graph.nodes:
        for rule in RULES if rules is None else rules:
            if operator_name(node) == rule.operator and _first_enough(node, rule) and rule.applies(*_sized(node.args), **_sized(node.kwargs)):
                yield node, rule


def _first_enough(node: Any, rule: Rule) -> bool:
    return not rule.first_only or all(user.target is operator.getitem and (user.args[1] == 0 or not user.users) for user in node.users)


def _sized(arguments: Any) -> Any:
    """Arguments with graph nodes replaced by their (fake) tensors, so that `applies` can read sizes."""
    if isinstance(arguments, dict):
        return {name: _sized(value) for name, value in arguments.items()}
    if isinstance(arguments, (tuple, list)):
        return type(arguments)(_sized(value) for value in arguments)
    return getattr(arguments, "meta", {}).get("val", arguments)


# --- transposed convolution -------------------------------------------------------------------------------------------------------------


def _transposed_needs_crop(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1
) -> bool:
    del x, bias, stride
    rank = weight.dim() - 2
    if rank == 3:
        return groups == 1
    return any(each(padding, rank)) or any(each(output_padding, rank)) or any(d != 1 for d in each(dilation, rank))


def transposed_convolution(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1
) -> Any:
    """The full transposed convolution without padding, then rows and columns cut (padding) or appended (output padding). LiteRT has none of three
    axes: there it is a plain convolution.

    Output size of an axis: (in - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1 (PyTorch, ConvTranspose2d).
    """
    import torch

    rank = weight.dim() - 2
    if x.dim() == rank + 1:  # without a batch
        return transposed_convolution(x[None], weight, bias, stride, padding, output_padding, groups, dilation)[0]
    if rank == 3:
        return _transposed_convolution_3d(x, weight, bias, stride, padding, output_padding, dilation)
    stride, padding, output_padding = each(stride, rank), each(padding, rank), each(output_padding, rank)
    kernel = _dilated(weight, each(dilation, rank))
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


def _convolution(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int) -> Any:
    del transposed
    return transposed_convolution(x, weight, bias, stride, padding, output_padding, groups, dilation)


def _transposed_convolution_3d(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, dilation: Any) -> Any:
    """A plain convolution with the mirrored kernel over the input spread by `stride` (Dumoulin and Visin 2016, relationship 14)."""
    import torch

    stride, padding, output_padding, dilation = (each(sizes, 3) for sizes in (stride, padding, output_padding, dilation))
    for axis in range(3):
        x = _spread(x, 2 + axis, stride[axis])
        before = dilation[axis] * (weight.shape[2 + axis] - 1) - padding[axis]
        x = _fitted(x, 2 + axis, before, before + output_padding[axis])
    return torch.nn.functional.conv3d(x, weight.flip(2, 3, 4).transpose(0, 1), bias, dilation=list(dilation))


def _spread(x: Any, axis: int, step: int) -> Any:
    """`x` with `step` - 1 zeros between its elements along an axis; of rank 3 inside, which all runtimes take."""
    import torch

    if step == 1:
        return x
    outer, size, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    rows = torch.nn.functional.pad(x.reshape(outer, size, inner), [0, (step - 1) * inner])
    return rows.reshape(*x.shape[:axis], size * step, *x.shape[axis + 1 :]).narrow(axis, 0, (size - 1) * step + 1)


def _fitted(x: Any, axis: int, before: int, after: int) -> Any:
    """`x` with that many zeros more at the two ends of an axis, or elements fewer where negative."""
    import torch

    x = x.narrow(axis, max(-before, 0), x.shape[axis] - max(-before, 0) - max(-after, 0))
    return torch.nn.functional.pad(x, [0, 0] * (x.dim() - 1 - axis) + [max(before, 0), max(after, 0)])


# --- reversal ---------------------------------------------------------------------------------------------------------------------------


def _flips_apart(x: Any, dims: Sequence[int]) -> bool:
    axes = sorted(axis % x.dim() for axis in dims)
    return any(after != before + 1 for before, after in itertools.pairwise(axes))


def flips(x: Any, dims: Sequence[int]) -> Any:
    """One reversal after the other."""
    for axis in dims:
        x = x.flip(axis)
    return x


# --- attention --------------------------------------------------------------------------------------------------------------------------


def _grouped(query: Any, key: Any, *others: Any, enable_gqa: bool = False, **named: Any) -> bool:
    del others, named
    return enable_gqa and query.shape[-3] != key.shape[-3]


def grouped_attention(query: Any, key: Any, value: Any, *others: Any, enable_gqa: bool = False, **named: Any) -> Any:
    """Attention whose keys and values serve several heads: repeated for each of them."""
    import torch

    del enable_gqa
    key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, *others, **named)


# --- softmax ----------------------------------------------------------------------------------------------------------------------------


def _not_last(x: Any, dim: int, dtype: Any = None) -> bool:
    return dtype is None and x.dim() > 1 and dim % x.dim() != x.dim() - 1


def softmax_last(x: Any, dim: int, dtype: Any = None) -> Any:
    """The softmax of another axis with that axis last: LiteRT has no other, and written out it is a division, which has no integers."""
    return x.movedim(dim, -1).softmax(-1, dtype).movedim(-1, dim)


_SHARED = "whose heads share keys: lowered to attention with repeated keys"
_SMOOTHED = "lowered to products with its weights"
_PICKED = "by a factor or to a size that does not divide: lowered to selections of rows and columns"
_TRANSPOSED = "with padding: lowered to a full transposed convolution and a crop"
_SPREAD = "lowered to a convolution over the spread input"
_APART = "of axes that do not follow each other: lowered to one reversal after the other"
_UNEVEN = "to a size that does not divide its input: lowered to plain pools and slices"
_LAST = "of another axis than the last: lowered to transpose, softmax and transpose"
_MEANS = "lowered to means of slices"
_LARGEST = "lowered to the largest of slices"
_UNCOUNTED = "that does not count its padding: lowered to pad, plain pool and a constant factor"

RULES = (
    Rule("aten::conv_transpose1d", _transposed_needs_crop, transposed_convolution, _TRANSPOSED),
    Rule("aten::conv_transpose2d", _transposed_needs_crop, transposed_convolution, _TRANSPOSED),
    Rule("aten::conv_transpose3d", _transposed_needs_crop, transposed_convolution, _SPREAD),
    Rule("aten::flip", _flips_apart, flips, _APART),
    Rule("aten::convolution", _convolution_needs_crop, _convolution, _TRANSPOSED),
    Rule("aten::adaptive_avg_pool2d", torch_pools.adaptive_uneven, torch_pools.adaptive_average_pool, _UNEVEN),
    *(Rule(f"aten::adaptive_max_pool{rank}d", torch_pools.always, torch_pools.adaptive_max_pool, _LARGEST, first_only=True) for rank in (1, 2, 3)),
    Rule("aten::softmax", _not_last, softmax_last, _LAST),
    Rule("aten::adaptive_avg_pool3d", torch_pools.always, torch_pools.adaptive_average_pool_3d, _MEANS),
    Rule("aten::avg_pool2d", torch_pools.excludes_padding, torch_pools.average_pool_excluding_padding, _UNCOUNTED),
    Rule("aten::upsample_nearest2d", torch_resizes.nearest_moves, torch_resizes.nearest, _PICKED),
    Rule("aten::upsample_bilinear2d", torch_resizes.bilinear_moves, torch_resizes.bilinear, _PICKED),
    *(
        Rule(f"aten::{kind}", torch_pools.always, torch_resizes.smoothed(kind), _SMOOTHED)
        for kind in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
    ),
)

SHARED_HEADS = Rule("aten::scaled_dot_product_attention", _grouped, grouped_attention, _SHARED)
"""For converters that do not know of keys that several heads share."""
