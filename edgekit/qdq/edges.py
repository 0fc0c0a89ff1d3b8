"""Integers at the edges of a QDQ graph: the caller quantizes what goes in and dequantizes what comes out."""

from __future__ import annotations

from typing import Any

from edgekit.qdq import protos
from edgekit.tensors import TensorSpec


def integers(proto: Any) -> tuple[Any, dict[str, TensorSpec]]:
    """A copy without the first quantizers and the last dequantizers, and what its inputs and outputs are now, by their old names.

    A spec's `name` is the new one. Edges that are not quantized (indices, float) are left as they are.
    """
    made, edges = protos.copy(proto), dict[str, TensorSpec]()
    values, graph = protos.constants(made), made.graph
    read = protos.consumers(graph.node)
    gone = set[int]()
    for value in graph.input:
        readers = read.get(value.name, [])
        if len(readers) == 1 and graph.node[readers[0]].op_type == "QuantizeLinear":
            gone.add(readers[0])
            _move(value, graph.node[readers[0]], graph.node[readers[0]].output[0], values, edges)
    makers = protos.producers(graph.node)
    for value in graph.output:
        maker = makers.get(value.name, -1)
        if maker >= 0 and graph.node[maker].op_type == "DequantizeLinear" and value.name not in read:
            gone.add(maker)
            _move(value, graph.node[maker], graph.node[maker].input[0], values, edges)
    for index in sorted(gone, reverse=True):
        del graph.node[index]
    return made, edges


def _move(value: Any, node: Any, name: str, values: dict[str, Any], edges: dict[str, TensorSpec]) -> None:
    import onnx

    zero = values[node.input[2]]
    shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    edges[value.name] = TensorSpec(name, shape, zero.dtype.name, float(values[node.input[1]]), int(zero))
    value.name = name
    value.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(zero.dtype)
