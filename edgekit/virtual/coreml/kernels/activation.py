"""Activations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)

from edgekit.virtual.coreml.kernels.arguments import Tensor, along, integer, number


def clamped_relu(x: Tensor, alpha: Any, beta: Any) -> Tensor:
    """min(beta, x) for x >= 0, min(beta, alpha * x) below."""
    return torch.where(x >= 0, x, alpha * x).clamp(max=number(beta))


def elu(x: Tensor, alpha: Any = 1.0) -> Tensor:
    """X above 0, alpha * (exp(x) - 1) below."""
    return torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0)))


def gelu(x: Tensor, mode: str = "EXACT") -> Tensor:
    """Gaussian error linear unit: exact, by tanh, or by sigmoid(1.702 x)."""
    if mode == "SIGMOID_APPROXIMATION":
        return x * torch.sigmoid(1.702 * x)
    if mode not in ("EXACT", "TANH_APPROXIMATION"):
        raise ValueError(f"no gelu mode {mode}")
    return F.gelu(x, approximate="tanh" if mode == "TANH_APPROXIMATION" else "none")


def leaky_relu(x: Tensor, alpha: Any = 0.01) -> Tensor:
    """X for x >= 0, alpha * x below."""
    return F.leaky_relu(x, number(alpha))


def linear_activation(x: Tensor, alpha: Any, beta: Any = 0.0) -> Tensor:
    """Alpha * x + beta."""
    return alpha * x + beta


def prelu(x: Tensor, alpha: Tensor) -> Tensor:
    """X above 0, alpha * x below, with alpha per channel (axis 1)."""
    return torch.where(x > 0, x, along(alpha, x.dim(), 1) * x)


def scaled_tanh(x: Tensor, alpha: Any = 1.0, beta: Any = 1.0) -> Tensor:
    """Alpha * tanh(beta * x)."""
    return alpha * torch.tanh(beta * x)


def sigmoid_hard(x: Tensor, alpha: Any = 0.2, beta: Any = 0.5) -> Tensor:
    """Alpha * x + beta, within 0 and 1."""
    return (alpha * x + beta).clamp(0, 1)


def softmax(x: Tensor, axis: Any = -1) -> Tensor:
    """exp(x) over its sum along `axis`."""
    return torch.softmax(x, integer(axis))


def softplus_parametric(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Alpha * ln(1 + exp(beta * x)), per channel (axis 1)."""
    return along(alpha, x.dim(), 1) * _softplus(along(beta, x.dim(), 1) * x)


def thresholded_relu(x: Tensor, alpha: Any = 1.0) -> Tensor:
    """X at or above alpha, 0 below."""
    return torch.where(x >= alpha, x, torch.zeros_like(x))


def _softplus(x: Tensor) -> Tensor:
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


OPERATORS = {
    "clamped_relu": clamped_relu,
    "elu": elu,
    "gelu": gelu,
    "leaky_relu": leaky_relu,
    "linear_activation": linear_activation,
    "prelu": prelu,
    "relu": lambda x: torch.relu(x),
    "relu6": lambda x: F.relu6(x),
    "scaled_tanh": scaled_tanh,
    "sigmoid": lambda x: torch.sigmoid(x),
    "sigmoid_hard": sigmoid_hard,
    "silu": lambda x: F.silu(x),
    "softmax": softmax,
    "softplus": lambda x: _softplus(x),
    "softplus_parametric": softplus_parametric,
    "softsign": lambda x: x / (1 + x.abs()),
    "tanh": lambda x: torch.tanh(x),
    "thresholded_relu": thresholded_relu,
}
