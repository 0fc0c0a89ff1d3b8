"""Parameters as Python values: an operator's axes, sizes and flags come as constants or as tensors computed before it."""

from __future__ import annotations

from typing import Any

Tensor = Any


def ints(value: Any) -> list[int]:
    """A vector (or scalar) of integers."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [int(x) for x in value] if isinstance(value, list | tuple) else [int(value)]


def number(value: Any) -> Any:
    """A scalar as a Python number; a vector of one element too."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    while isinstance(value, list | tuple):
        value = value[0]
    return value


def integer(value: Any) -> int:
    """A scalar integer."""
    return int(number(value))


def flag(value: Any) -> bool:
    """A scalar truth value."""
    return bool(number(value))


def along(vector: Tensor, rank: int, axis: int) -> Tensor:
    """A vector shaped to broadcast along `axis` of a tensor of `rank`; a scalar stays."""
    if vector.dim() == 0:
        return vector
    shape = [1] * rank
    shape[axis] = -1
    return vector.reshape(shape)
