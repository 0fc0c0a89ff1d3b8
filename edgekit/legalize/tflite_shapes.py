"""Shapes that a `.tflite` computes while it runs: constants, once every shape is static. A converter writes them where the batch was open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.tensors import Array

DTYPES = ("int32", "int64")
"""Types of shapes."""


def fold(model: Any) -> tuple[str, ...]:
    """Make what follows from static shapes alone constants of the main graph of a parsed model; the names of the layers that used to compute it."""
    graph, kept, folded = model.subgraphs[0], [], []
    for operator in graph.operators:
        values = _values(model, graph, operator)
        if values is None:
            kept.append(operator)
            continue
        tensor = graph.tensors[int(operator.outputs[0])]
        tensor.buffer, tensor.shape, tensor.shapeSignature = flatbuffer.add_constant(model, values), list(values.shape), None
        folded.append(flatbuffer.text(tensor.name))
    graph.operators = kept
    return tuple(folded)


def _values(model: Any, graph: Any, operator: Any) -> Array | None:
    """What the operator gives, as its tensor stores it; None where that is not known before it runs, or is an output of the graph."""
    compute = _COMPUTED.get(flatbuffer.op_name(model, operator))
    if compute is None:
        return None
    out = int(operator.outputs[0])
    dtype = flatbuffer.numpy_dtype(graph.tensors[out].type)
    if dtype not in DTYPES or out in [int(i) for i in graph.outputs]:
        return None
    tensors = [graph.tensors[int(i)] for i in operator.inputs]
    found = compute(operator.builtinOptions, tensors, [flatbuffer.constant(model, tensor) for tensor in tensors])
    return None if found is None else found.astype(dtype)


def _shape(_options: Any, tensors: list[Any], _given: list[Array | None]) -> Array | None:
    import numpy as np

    return None if tensors[0].shape is None else np.asarray([int(n) for n in tensors[0].shape], np.int64)


def _slice(options: Any, _tensors: list[Any], given: list[Array | None]) -> Array | None:
    """A slice of one dimension, as shapes have."""
    import numpy as np

    if any(array is None for array in given) or options.ellipsisMask or options.newAxisMask:
        return None
    values, *bounds = (np.asarray(array) for array in given)
    if values.ndim != 1 or any(bound.size != 1 for bound in bounds):
        return None
    begin, end, step = (int(bound.reshape(-1)[0]) for bound in bounds)
    if options.shrinkAxisMask:
        return np.asarray(values[begin])
    return np.asarray(values[None if options.beginMask else begin : None if options.endMask else end : step])


def _pack(options: Any, _tensors: list[Any], given: list[Array | None]) -> Array | None:
    import numpy as np

    return None if any(array is None for array in given) else np.stack([np.asarray(array) for array in given], int(options.axis))


_COMPUTED: dict[str, Callable[[Any, list[Any], list[Array | None]], Array | None]] = {"SHAPE": _shape, "STRIDED_SLICE": _slice, "PACK": _pack}
