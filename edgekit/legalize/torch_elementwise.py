"""Rewrites of element-wise operators of PyTorch, and of products, that coremltools refuses or makes other values of. Each is exact."""

from __future__ import annotations

from typing import Any

from edgekit.legalize.torch_ops import Rule
from edgekit.legalize.torch_pools import always

LOGICAL = {name: f"logical_{name.strip('_').removeprefix('bitwise_')}" for name in ("__and__", "__or__", "__xor__")} | {
    f"bitwise_{name}": f"logical_{name}" for name in ("and", "or", "xor", "not")
}


def _is_truth(x: Any, *others: Any) -> bool:
    import torch

    return all(isinstance(value, bool) or getattr(value, "dtype", None) == torch.bool for value in (x, *others))


def logical(name: str) -> Any:
    """Bits of truth values are the values."""

    def lowered(x: Any, *others: Any) -> Any:
        import torch

        return getattr(torch, name)(x, *(torch.tensor(other) if isinstance(other, bool) else other for other in others))

    return lowered


def _turns_early(x: Any, beta: float = 1, threshold: float = 20) -> bool:
    del x, beta
    return threshold < 15


def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    """Beyond the threshold it is x itself."""
    import torch

    return torch.where(x * beta > threshold, x, torch.nn.functional.softplus(x, beta))


def log_sigmoid(x: Any) -> Any:
    """Minus the softplus of minus x."""
    import torch

    return -torch.nn.functional.softplus(-x)


def hardshrink(x: Any, threshold: float = 0.5) -> Any:
    """What is small is zero."""
    import torch

    return torch.where(x.abs() > threshold, x, torch.zeros_like(x))


def trunc(x: Any) -> Any:
    """Toward zero: the floor of the size, with the sign."""
    return x.sign() * x.abs().floor()


def _is_scaled(x: Any, other: Any, *, alpha: float = 1) -> bool:
    del x, other
    return alpha != 1


def add(x: Any, other: Any, *, alpha: float = 1) -> Any:
    """Of a multiple."""
    return x + other * alpha


def subtract(x: Any, other: Any, *, alpha: float = 1) -> Any:
    """Of a multiple."""
    return x - other * alpha


def _is_multiple(x: Any, other: Any, alpha: float = 1) -> bool:
    return _is_scaled(x, other, alpha=alpha)


def reverse_subtract(x: Any, other: Any, alpha: float = 1) -> Any:
    """From another."""
    return other - x * alpha


def _of_vectors(x: Any, other: Any) -> bool:
    return bool(x.dim() == 1 or other.dim() == 1)


def product(x: Any, other: Any) -> Any:
    """Vectors as matrices of one row or one column."""
    import torch

    if x.dim() == other.dim() == 1:
        return (x * other).sum()
    return torch.matmul(x[None], other).squeeze(-2) if x.dim() == 1 else torch.matmul(x, other[:, None]).squeeze(-1)


def add_product(x: Any, first: Any, second: Any, *, value: float = 1) -> Any:
    """Plus a multiple of a product."""
    return x + first * second * value


def interpolate(x: Any, end: Any, weight: Any) -> Any:
    """A share of the way."""
    return x + (end - x) * weight


_MATRICES = "of vectors: lowered to one of matrices, or to a sum"
_MULTIPLE = "of a multiple: written out"

RULES = (
    *(Rule(f"aten::{name}", _is_truth, logical(other), "of truth values: lowered to a logical operator") for name, other in LOGICAL.items()),
    Rule("aten::softplus", _turns_early, softplus, "with a low threshold: written out"),
    Rule("aten::log_sigmoid", always, log_sigmoid, "lowered to a softplus"),
    Rule("aten::hardshrink", always, hardshrink, "lowered to a selection"),
    Rule("aten::trunc", always, trunc, "lowered to a floor of the size"),
    Rule("aten::add", _is_scaled, add, _MULTIPLE),
    Rule("aten::sub", _is_scaled, subtract, _MULTIPLE),
    Rule("aten::rsub", _is_multiple, reverse_subtract, _MULTIPLE),
    Rule("aten::addcmul", always, add_product, "written out"),
    Rule("aten::lerp", always, interpolate, "written out"),
    Rule("aten::matmul", _of_vectors, product, _MATRICES),
    Rule("aten::dot", always, product, _MATRICES),
)
"""For coremltools."""
