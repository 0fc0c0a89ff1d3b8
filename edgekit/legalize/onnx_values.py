"""Small readings of onnx_ir values and nodes that the rules share."""

from __future__ import annotations

from typing import Any

from edgekit.tensors import Array


def array(value: Any) -> Array | None:
    """The value of a constant; None for anything computed."""
    import onnx_ir

    tensor = None if value is None else onnx_ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def number(value: Any) -> float | None:
    """The one number that a constant holds; None for anything else."""
    found = array(value)
    return None if found is None or found.size != 1 else float(found.reshape(-1)[0])


def near(value: Any, wanted: float) -> bool:
    """Whether a constant holds one number, `wanted` but for float rounding."""
    found = number(value)
    return found is not None and abs(found - wanted) <= 2e-6 * max(abs(wanted), 1e-3)


def shape(value: Any) -> tuple[int, ...] | None:
    """Static sizes; None where one is open or the rank is unknown."""
    found = None if value is None else value.shape
    if found is None or not all(isinstance(size, int) for size in found):
        return None
    return tuple(int(size) for size in found)


def attribute(node: Any, name: str, default: Any) -> Any:
    """An attribute's value, or what the operator takes for it."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def axes(node: Any) -> tuple[int, ...] | None:
    """The axes that a reduction works on, from its attribute or its constant input; empty for all of them, None when they are computed."""
    if "axes" in node.attributes:
        return tuple(int(axis) for axis in node.attributes["axes"].value)
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        found = array(node.inputs[1])
        return None if found is None else tuple(int(axis) for axis in found.reshape(-1))
    return ()


def constant(op: Any, values: Any, dtype: str = "float32") -> Any:
    """A new constant."""
    import numpy as np
    import onnx_ir

    return op.Constant(value=onnx_ir.tensor(np.asarray(values, dtype)))
