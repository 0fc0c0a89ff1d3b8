"""Operators that move int8 values and leave them as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from edgekit.tensors import Array
from edgekit.virtual.dpu.operands import (
    INT8_BOUND,
    Accumulated,
    Attributes,
    Builder,
    Operand,
    any_operand,
    data_operand,
    moved,
    names,
    refuse,
    taker,
)
from edgekit.virtual.dpu.operators import BUILDERS as LINEAR


def _pad(name: str, attributes: Attributes, operands: Sequence[Operand | Array | None]) -> Accumulated:
    import numpy as np

    data, amounts = data_operand(name, operands[0]), operands[1]
    fill = operands[2] if len(operands) > 2 else None
    real = float(np.ravel(fill)[0]) if isinstance(fill, np.ndarray) and fill.size else 0.0
    stored = real * 2.0**data.position
    mode = attributes.get("mode", b"constant").decode()
    if not isinstance(amounts, np.ndarray) or (amounts < 0).any() or stored != int(stored) or not -128 <= stored <= 127 or len(operands) > 3:
        raise refuse(name, "Pad that is not constant, crops, or fills with a value that the tensor cannot hold")
    pairs = list(zip(amounts[: len(amounts) // 2].tolist(), amounts[len(amounts) // 2 :].tolist(), strict=True))
    more: dict[str, Any] = {"constant_values": int(stored)} if mode == "constant" else {}
    return moved("Pad", name, data, lambda x: np.pad(x, pairs, mode=mode, **more))


def _concat(name: str, attributes: Attributes, operands: Sequence[Operand | Array | None]) -> Accumulated:
    import numpy as np

    parts = [any_operand(name, operand) for operand in operands]
    position, axis, take = max(part.position for part in parts), int(attributes["axis"]), taker(parts)
    ups = [position - part.position for part in parts]
    if not any(ups):
        return Accumulated("Concat", name, names(parts), position, INT8_BOUND, lambda arrays: np.concatenate(take(arrays), axis))

    def compute(arrays: Sequence[Array]) -> Array:
        return np.concatenate([part.astype(np.int32) << up for part, up in zip(take(arrays), ups, strict=True)], axis)

    return Accumulated("Concat", name, names(parts), position, INT8_BOUND << max(ups), compute)


def _view(kind: str) -> Builder:
    """Operators that move values and leave them as they are: what onnx's own definition of the shape says, by numpy."""

    def build(name: str, attributes: Attributes, operands: Sequence[Operand | Array | None]) -> Accumulated:
        import numpy as np

        data = data_operand(name, operands[0])
        constants = list(operands[1:])
        if any(not isinstance(operand, np.ndarray) for operand in constants if operand is not None):
            raise refuse(name, f"{kind} whose sizes are computed")
        return moved(kind, name, data, lambda x: _move(kind, x, attributes, constants))

    return build


def _move(kind: str, x: Array, attributes: Attributes, constants: Sequence[Any]) -> Array:
    import numpy as np

    if kind == "Reshape":
        return x.reshape([x.shape[i] if size == 0 else int(size) for i, size in enumerate(constants[0])])
    if kind == "Flatten":
        axis = int(attributes.get("axis", 1))
        return x.reshape(math.prod(x.shape[:axis]), -1)
    if kind == "Transpose":
        return np.ascontiguousarray(x.transpose(attributes.get("perm")))
    if kind == "Squeeze":
        return x.squeeze(tuple(int(a) for a in constants[0]) if constants and constants[0] is not None else None)
    if kind == "Unsqueeze":
        return np.expand_dims(x, tuple(int(a) for a in constants[0]))
    if kind == "Slice":
        return _slice(x, constants)
    return x


def _slice(x: Array, constants: Sequence[Any]) -> Array:
    starts, ends = constants[0].tolist(), constants[1].tolist()
    axes = constants[2].tolist() if len(constants) > 2 and constants[2] is not None else range(len(starts))
    steps = constants[3].tolist() if len(constants) > 3 and constants[3] is not None else [1] * len(starts)
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(start, end if abs(end) < 2**31 - 1 else None, step)
    return x[tuple(index)]


VIEWS = ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Identity")

BUILDERS: dict[str, Builder] = {**LINEAR, "Pad": _pad, "Concat": _concat, **{kind: _view(kind) for kind in VIEWS}}
"""All operators but the global pools, by ONNX type."""
