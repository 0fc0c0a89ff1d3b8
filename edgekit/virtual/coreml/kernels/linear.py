"""Matrix products, and attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)

from edgekit.virtual.coreml.kernels.arguments import Tensor, flag


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X times the transpose of weight [out, in], plus bias."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def matmul(x: Tensor, y: Tensor, transpose_x: Any = False, transpose_y: Any = False) -> Tensor:
    """Batched matrix product; the last two axes may be exchanged first."""
    x = x.transpose(-1, -2) if flag(transpose_x) else x
    return torch.matmul(x, y.transpose(-1, -2) if flag(transpose_y) else y)


def einsum(values: tuple[Tensor, ...], equation: str) -> Tensor:
    """Sum of products by subscripts."""
    return torch.einsum(equation, *values)


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """softmax(query key^T / sqrt(d) + mask) value; a boolean mask keeps where it is true."""
    scores = torch.matmul(query, key.transpose(-1, -2)) / query.shape[-1] ** 0.5
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, float("-inf")) if attn_mask.dtype == torch.bool else scores + attn_mask
    return torch.matmul(torch.softmax(scores, -1), value)


OPERATORS = {"linear": linear, "matmul": matmul, "einsum": einsum, "scaled_dot_product_attention": scaled_dot_product_attention}
