"""Elementwise operators of one, two and three tensors, and the conversion of types."""

from __future__ import annotations

from typing import Any

import torch

from edgekit.virtual.coreml.kernels.arguments import Tensor, along, integer

INTEGER_LIMITS = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**53), 2**53),
    "uint64": (0, 2**53),
}


def cast(x: Tensor, dtype: str) -> Tensor:
    """Another type; a float becomes an integer by truncation toward zero, saturating."""
    if dtype == "bool":
        return x != 0
    if dtype in INTEGER_LIMITS:
        low, high = INTEGER_LIMITS[dtype]
        return x.double().nan_to_num(0).clamp(low, high).trunc().long()
    if dtype in ("fp16", "fp32", "fp64"):
        return x.float()
    raise ValueError(f"no cast to {dtype}")


def clip(x: Tensor, alpha: Any, beta: Any) -> Tensor:
    """At least `alpha`, at most `beta`."""
    return torch.minimum(torch.maximum(x, alpha.to(x.dtype)), beta.to(x.dtype))


def inverse(x: Tensor, epsilon: Any = 1e-4) -> Tensor:
    """1 / (x + epsilon)."""
    return 1 / (x + epsilon)


def log(x: Tensor, epsilon: Any = 1e-45) -> Tensor:
    """ln(x + epsilon)."""
    return torch.log(x + epsilon)


def rsqrt(x: Tensor, epsilon: Any = 1e-12) -> Tensor:
    """1 / sqrt(x + epsilon)."""
    return torch.rsqrt(x + epsilon)


def threshold(x: Tensor, alpha: Any) -> Tensor:
    """max(x, alpha)."""
    return torch.maximum(x, alpha.to(x.dtype))


def pow_(x: Tensor, y: Tensor) -> Tensor:
    """X to the power y."""
    return torch.pow(x, y)


def select(cond: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`a` where `cond` holds, else `b`."""
    return torch.where(cond.bool(), a, b)


def quantize(input: Tensor, scale: Tensor, output_dtype: str, zero_point: Tensor | None = None, axis: Any = 0) -> Tensor:
    """Stored integers: clip(round(input / scale) + zero_point), rounding half to even."""
    low, high = INTEGER_LIMITS[output_dtype]
    steps = torch.round(input / along(scale, input.dim(), integer(axis)))
    offset = 0 if zero_point is None else along(zero_point.float(), input.dim(), integer(axis))
    return (steps + offset).clamp(low, high).to(torch.int32)


def dequantize(input: Tensor, scale: Tensor, zero_point: Tensor | None = None, axis: Any = 0) -> Tensor:
    """Real values: scale * (input - zero_point)."""
    offset = 0 if zero_point is None else along(zero_point.float(), input.dim(), integer(axis))
    return (input.float() - offset) * along(scale, input.dim(), integer(axis))


def _unary(function: Any) -> Any:
    return lambda x: function(x)


def _binary(function: Any) -> Any:
    return lambda x, y: function(x, y)


UNARY = {
    "abs": torch.abs,
    "acos": torch.acos,
    "asin": torch.asin,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "erf": torch.erf,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "floor": torch.floor,
    "identity": lambda x: x,
    "logical_not": lambda x: torch.logical_not(x),
    "round": torch.round,
    "sign": torch.sign,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tan": torch.tan,
}
BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "real_div": torch.true_divide,
    "floor_div": torch.floor_divide,
    "mod": torch.remainder,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "equal": torch.eq,
    "not_equal": torch.ne,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
    "less_equal": torch.le,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}

OPERATORS = {
    **{name: _unary(function) for name, function in UNARY.items()},
    **{name: _binary(function) for name, function in BINARY.items()},
    "cast": cast,
    "clip": clip,
    "inverse": inverse,
    "log": log,
    "rsqrt": rsqrt,
    "threshold": threshold,
    "pow": pow_,
    "select": select,
    "quantize": quantize,
    "dequantize": dequantize,
}
