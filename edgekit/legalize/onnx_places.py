"""Scatter, one-hot and padding with places that are known when the model is built."""

from __future__ import annotations

import math
from typing import Any

from edgekit.legalize.onnx_split import refusing
from edgekit.legalize.onnx_values import array, attribute, constant, shape
from edgekit.tensors import Array


def _scatter(op: Any, x: Any, out: Any) -> Any:
    node, sizes = out.producer(), shape(x)
    indices = array(node.inputs[1])
    if sizes is None or indices is None:
        return None
    axis = attribute(node, "axis", 0)
    grids = list(_grid(indices.shape))
    grids[axis] = indices
    return _written(op, x, node, sizes, _flat(grids, sizes))


def _scatter_nd(op: Any, x: Any, out: Any) -> Any:
    node, sizes = out.producer(), shape(x)
    indices = array(node.inputs[1])
    if sizes is None or indices is None:
        return None
    depth = indices.shape[-1]
    inner = _grid(sizes[depth:])
    outer = indices.shape[:-1]
    places = [indices[..., k].reshape(*outer, *(1,) * len(inner)) for k in range(depth)]
    return _written(op, x, node, sizes, _flat([*places, *inner], sizes))


def _grid(sizes: Any) -> tuple[Array, ...]:
    import numpy as np

    return tuple(np.indices(tuple(sizes), sparse=True))


def _flat(places: Any, sizes: tuple[int, ...]) -> Array:
    """Row-major position in `sizes` for each update."""
    import numpy as np

    wrapped = [np.where(p < 0, p + n, p) for p, n in zip(places, sizes, strict=True)]
    found: Array = np.ravel_multi_index(tuple(np.broadcast_arrays(*wrapped)), sizes).reshape(-1)
    return found


def _written(op: Any, x: Any, node: Any, sizes: tuple[int, ...], flat: Array) -> Any:
    """Each place takes the update that is written to it last, or keeps the data; sums are made where no place is written twice."""
    import numpy as np

    how = attribute(node, "reduction", "none")
    combine = {"none": "", "add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}.get(how)
    if combine is None or not flat.size or (combine and len(np.unique(flat)) < flat.size):
        return None
    count = math.prod(sizes)
    source, hit = np.zeros(count, np.int64), np.zeros(count, bool)
    source[flat], hit[flat] = np.arange(flat.size), True
    updates = op.Gather(op.Reshape(node.inputs[2], constant(op, [-1], "int64")), constant(op, source, "int64"), axis=0)
    placed = op.Reshape(updates, constant(op, sizes, "int64"))
    value = getattr(op, combine)(x, placed) if combine else placed
    return value if hit.all() else op.Where(constant(op, hit.reshape(sizes), "bool"), value, x)


def _pad(op: Any, x: Any, out: Any) -> Any:
    """Padding of some axes as padding of all."""
    node, sizes = out.producer(), shape(x)
    axes = array(node.inputs[3]) if len(node.inputs) > 3 else None
    pads = array(node.inputs[1]) if len(node.inputs) > 1 else None
    if sizes is None or axes is None or pads is None:
        return None
    every = [0] * 2 * len(sizes)
    for place, axis in enumerate(axes):
        every[axis % len(sizes)] = int(pads[place])
        every[axis % len(sizes) + len(sizes)] = int(pads[place + len(axes)])
    return op.Pad(x, constant(op, every, "int64"), node.inputs[2], mode=attribute(node, "mode", "constant"))


KNOWN = "its places are known: each element is picked from updates or data"

RULES = (
    *(refusing("scatter", kind, ("Reshape", "Gather", "Where"), _scatter, KNOWN)
      for kind in ("ScatterElements", "Scatter")),
    refusing("scatter-nd", "ScatterND", ("Reshape", "Gather", "Where"), _scatter_nd, KNOWN),
    refusing("pad-axes", "Pad", ("Pad",), _pad, "the target takes padding of all axes"),
)  # fmt: skip
