"""Reductions along axes; without axes, over all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from edgekit.virtual.coreml.kernels.arguments import Tensor, flag, integer, ints


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Callable[..., Tensor]:
    def reduce(x: Tensor, axes: Any = None, keep_dims: Any = False) -> Tensor:
        over = list(range(x.dim())) if axes is None else [axis % x.dim() for axis in ints(axes)]
        return function(x, over, flag(keep_dims)) if over else x

    return reduce


def _arg(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def arg(x: Tensor, axis: Any = -1, keep_dims: Any = False, output_dtype: str = "int32") -> Tensor:
        del output_dtype  # the interpreter stores what the program states
        return function(x, integer(axis), flag(keep_dims))

    return arg


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _log_sum_exp(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.logsumexp(x, axes, keep)


OPERATORS = {
    "reduce_argmax": _arg(torch.argmax),
    "reduce_argmin": _arg(torch.argmin),
    "reduce_l1_norm": _reduction(lambda x, axes, keep: x.abs().sum(axes, keep)),
    "reduce_l2_norm": _reduction(lambda x, axes, keep: x.square().sum(axes, keep).sqrt()),
    "reduce_log_sum": _reduction(lambda x, axes, keep: x.sum(axes, keep).log()),
    "reduce_log_sum_exp": _reduction(_log_sum_exp),
    "reduce_max": _reduction(torch.amax),
    "reduce_mean": _reduction(lambda x, axes, keep: x.float().mean(axes, keep)),
    "reduce_min": _reduction(torch.amin),
    "reduce_prod": _reduction(_product),
    "reduce_sum": _reduction(torch.sum),
    "reduce_sum_square": _reduction(lambda x, axes, keep: x.square().sum(axes, keep)),
}
