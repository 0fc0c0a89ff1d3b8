"""Operands of the accelerator's operators, and what an operator is before its shift."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgekit.errors import ConversionError
from edgekit.tensors import Array
from edgekit.virtual.dpu.kernels import Window

INT8_BOUND = 128


@dataclasses.dataclass(frozen=True)
class Operand:
    """An int8 tensor (or an int8 or int32 constant in `constant`) of a position, `shape` where it is known."""

    name: str
    position: int
    constant: Array | None = None


@dataclasses.dataclass(frozen=True)
class Accumulated:
    """What an operator computes before the shift to int8: `compute` gives integers of `position`, of magnitude `bound` at most.

    Real values are those integers / `divisor` * 2^-position; a divisor other than 1 must be made a fraction k / 2^n by a factor that follows.
    """

    type: str
    name: str
    inputs: tuple[str, ...]
    position: int
    bound: int
    compute: Callable[[Sequence[Array]], Array]
    divisor: int = 1


Attributes = Mapping[str, Any]
Builder = Callable[[str, Attributes, Sequence[Operand | Array | None]], Accumulated]


def refuse(name: str, what: str, hint: str | None = None) -> ConversionError:
    """The error of an operator that the accelerator's arithmetic does not have."""
    return ConversionError(f"{name}: {what}", hint)


def moved(kind: str, name: str, data: Operand, move: Callable[[Array], Array]) -> Accumulated:
    """An operator that moves values; the position stays."""
    return Accumulated(kind, name, (data.name,), data.position, INT8_BOUND, lambda arrays: move(arrays[0]))


def window_of(name: str, attributes: Attributes, kernel: Sequence[int]) -> Window:
    """The sliding window of a node. Raises `ConversionError` for another rank and for automatic pads."""
    if len(kernel) != 2:
        raise refuse(name, f"a window over {len(kernel)} dimensions", "the accelerator works on images")
    if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise refuse(name, f"auto_pad {attributes['auto_pad'].decode()}", "give explicit pads")
    pads = tuple(int(p) for p in attributes.get("pads", (0, 0, 0, 0)))
    strides, dilations = (tuple(int(v) for v in attributes.get(key, (1, 1))) for key in ("strides", "dilations"))
    return Window((int(kernel[0]), int(kernel[1])), (strides[0], strides[1]), (dilations[0], dilations[1]), (pads[0], pads[1], pads[2], pads[3]))


def no_ceil(name: str, attributes: Attributes) -> None:
    """Raise `ConversionError` for a pool whose last window hangs over."""
    if attributes.get("ceil_mode"):
        raise refuse(name, "pooling with ceil_mode", "pad explicitly")


def data_operand(name: str, operand: Operand | Array | None) -> Operand:
    """An operand that must be a tensor."""
    if not isinstance(operand, Operand) or operand.constant is not None:
        raise refuse(name, "its data input is not an int8 tensor")
    return operand


def constant_operand(name: str, operand: Operand | Array | None) -> Operand:
    """An operand that must be a stored constant."""
    if not isinstance(operand, Operand) or operand.constant is None:
        raise refuse(name, "weights or bias are not stored integers with a scale", "quantize them with QuantizeLinear and fold it")
    return operand


def any_operand(name: str, operand: Operand | Array | None) -> Operand:
    """An operand that is a tensor or a stored constant."""
    if not isinstance(operand, Operand):
        raise refuse(name, "an operand is in float", "quantize it")
    return operand


def integers(operand: Operand) -> Array:
    """The integers of a constant."""
    assert operand.constant is not None
    return operand.constant


def optional(operands: Sequence[Operand | Array | None], index: int) -> Operand | Array | None:
    """An operand that may be absent."""
    return operands[index] if len(operands) > index else None


def names(operands: Sequence[Operand]) -> tuple[str, ...]:
    """The tensors among the operands."""
    return tuple(operand.name for operand in operands if operand.constant is None)


def taker(operands: Sequence[Operand]) -> Callable[[Sequence[Array]], list[Array]]:
    """All operands in order, constants in their places."""

    def take(arrays: Sequence[Array]) -> list[Array]:
        given = iter(arrays)
        return [next(given) if operand.constant is None else operand.constant for operand in operands]

    return take
