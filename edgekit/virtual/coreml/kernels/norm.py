"""Normalizations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)

from edgekit.virtual.coreml.kernels.arguments import Tensor, along, integer, ints


def batch_norm(x: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, epsilon: Any = 1e-5) -> Tensor:
    """Gamma * (x - mean) / sqrt(variance + epsilon) + beta, per channel (axis 1)."""
    scale = torch.rsqrt(variance + epsilon)
    scale = scale if gamma is None else scale * gamma
    shift = -mean * scale if beta is None else beta - mean * scale
    return x * along(scale, x.dim(), 1) + along(shift, x.dim(), 1)


def instance_norm(x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, epsilon: Any = 1e-5) -> Tensor:
    """Mean 0 and variance 1 over the spatial axes of each instance and channel, then gamma and beta per channel."""
    out = _standardized(x, list(range(2, x.dim())), epsilon)
    out = out if gamma is None else out * along(gamma, x.dim(), 1)
    return out if beta is None else out + along(beta, x.dim(), 1)


def layer_norm(x: Tensor, axes: Any = None, gamma: Tensor | None = None, beta: Tensor | None = None, epsilon: Any = 1e-5) -> Tensor:
    """Mean 0 and variance 1 over `axes`, then gamma and beta of those axes' shape."""
    over = sorted(axis % x.dim() for axis in (range(x.dim()) if axes is None else ints(axes)))
    shape = [size if i in over else 1 for i, size in enumerate(x.shape)]
    out = _standardized(x, over, epsilon)
    out = out if gamma is None else out * gamma.reshape(shape)
    return out if beta is None else out + beta.reshape(shape)


def l2_norm(x: Tensor, epsilon: Any = 1e-6) -> Tensor:
    """X over the root of its sum of squares along the last three axes."""
    return x / torch.sqrt(x.square().sum([-3, -2, -1], keepdim=True) + epsilon)


def local_response_norm(x: Tensor, size: Any, alpha: Any = 1e-4, beta: Any = 0.75, k: Any = 1.0) -> Tensor:
    """X / (k + alpha / size * sum of squares over `size` neighboring channels) ** beta."""
    width = integer(size)
    squares = x.square().flatten(2).transpose(1, 2)
    mean = F.avg_pool1d(F.pad(squares, [width // 2, (width - 1) // 2]), width, 1).transpose(1, 2)
    return x / (k + alpha * mean.reshape(x.shape)) ** beta


def _standardized(x: Tensor, axes: list[int], epsilon: Any) -> Tensor:
    centered = x - x.mean(axes, keepdim=True)
    return centered * torch.rsqrt(centered.square().mean(axes, keepdim=True) + epsilon)


OPERATORS = {
    "batch_norm": batch_norm,
    "instance_norm": instance_norm,
    "layer_norm": layer_norm,
    "l2_norm": l2_norm,
    "local_response_norm": local_response_norm,
}
