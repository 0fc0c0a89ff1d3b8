"""ONNX graphs in half precision, widened."""

from __future__ import annotations

from typing import Any

from edgekit.formats._onnx_graph import graphs, tensors

_CARRYING_TYPES = {"to", "dtype", "output_dtype"}


def widened(proto: Any) -> Any:
    """A copy whose float16 and bfloat16 are float32; the graph itself where it has none. Values are widened exactly."""
    import numpy as np
    import onnx

    halves = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    ends = [value for graph in graphs(proto.graph) for value in (*graph.input, *graph.output)]
    if not any(t.data_type in halves for t in tensors(proto)) and not any(v.type.tensor_type.elem_type in halves for v in ends):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for tensor in tensors(copy):
        if tensor.data_type in halves:
            wide = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))
    for graph in graphs(copy.graph):
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type in halves:
                value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        del graph.value_info[:]
        for attribute in (a for node in graph.node for a in node.attribute if a.name in _CARRYING_TYPES and a.i in halves):
            attribute.i = onnx.TensorProto.FLOAT
    return copy
