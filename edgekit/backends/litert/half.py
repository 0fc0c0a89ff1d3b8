"""Half-precision storage: float32 constants stored as float16 behind a DEQUANTIZE, which XNNPACK and the GPU delegate fold at load."""

from __future__ import annotations

from typing import Any

from edgekit.formats import tflite_flatbuffer as flatbuffer

MIN_ELEMENTS = 64
"""A smaller constant saves less than its DEQUANTIZE operator and second tensor take."""

LARGEST = 65504.0
"""Largest finite float16."""


def store_half(model: Any) -> list[str]:
    """Turn the float32 constants of every graph into float16 in place; notices about those that stay float32 because they would overflow."""
    notices: list[str] = []
    for graph in model.subgraphs:
        stored: dict[int, int] = {}
        _replace_inputs(model, graph, stored, notices)
        _dequantize(model, graph, stored)
    return notices


def holds_exactly(content: bytes, name: str) -> bool:
    """Whether float16 stores the weights of a model as they are: those of one that was trained or saved in half precision."""
    import numpy as np

    model = flatbuffer.load(content, name)
    halved = False
    for tensor in (tensor for graph in model.subgraphs for tensor in graph.tensors):
        if tensor.type != flatbuffer.schema().TensorType.FLOAT32 or tensor.sparsity is not None:
            halved |= tensor.type == flatbuffer.schema().TensorType.FLOAT16
            continue
        values = flatbuffer.constant(model, tensor)
        if values is None or values.size < MIN_ELEMENTS:
            continue
        with np.errstate(over="ignore"):
            if not np.array_equal(values.astype(np.float16).astype(np.float32), values):
                return False
        halved = True
    return halved


def _replace_inputs(model: Any, graph: Any, stored: dict[int, int], notices: list[str]) -> None:
    edges = {int(index) for index in (*graph.inputs, *graph.outputs)}
    for op in graph.operators:
        for position, index in enumerate(op.inputs):
            if index < 0 or index in edges or (index not in stored and not _can_halve(model, graph.tensors[index], notices)):
                continue
            if index not in stored:
                stored[int(index)] = _float_twin(graph, graph.tensors[index])
            op.inputs[position] = stored[int(index)]
    for index in stored:
        _halve(model, graph.tensors[index])


def _can_halve(model: Any, tensor: Any, notices: list[str]) -> bool:
    import numpy as np

    if tensor.type != flatbuffer.schema().TensorType.FLOAT32 or tensor.isVariable or tensor.sparsity is not None:
        return False
    values = flatbuffer.constant(model, tensor)
    if values is None or values.size < MIN_ELEMENTS:
        return False
    largest = float(np.max(np.abs(values)))
    if largest > LARGEST:
        notices.append(f"{flatbuffer.text(tensor.name)} stays float32: its largest magnitude {largest:.6g} exceeds float16's {LARGEST:.0f}")
    return largest <= LARGEST


def _float_twin(graph: Any, tensor: Any) -> int:
    twin = flatbuffer.schema().TensorT()
    twin.name, twin.shape, twin.type, twin.buffer = flatbuffer.text(tensor.name).encode() + b"_float", list(tensor.shape), tensor.type, 0
    twin.hasRank = tensor.hasRank
    graph.tensors.append(twin)
    return len(graph.tensors) - 1


def _halve(model: Any, tensor: Any) -> None:
    import numpy as np

    tensor.buffer = flatbuffer.add_constant(model, flatbuffer.data(model, tensor).astype(np.float16))
    tensor.type = flatbuffer.schema().TensorType.FLOAT16


def _dequantize(model: Any, graph: Any, stored: dict[int, int]) -> None:
    made = flatbuffer.schema()
    first = []
    for half, full in stored.items():
        op = made.OperatorT()
        op.opcodeIndex = flatbuffer.op_code(model, "DEQUANTIZE", 3)  # version 3 reads float16
        op.inputs, op.outputs = [half], [full]
        first.append(op)
    graph.operators = first + graph.operators
