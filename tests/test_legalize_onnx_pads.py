"""Padding stated by its result is written out as onnxruntime computes it."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from edgekit.legalize import onnx_pads  # noqa: E402  # after the check that ONNX is there


def _model(kind, weight, **attributes):
    inputs = ["x"] if weight is None else ["x", "w"]
    node = onnx.helper.make_node(kind, inputs, ["y"], **attributes)
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in (("x", [1, 4, 7, 8]), ("y", None))]
    stored = [] if weight is None else [onnx.numpy_helper.from_array(weight, "w")]
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:], stored)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def _run(model):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.random.RandomState(1).standard_normal((1, 4, 7, 8)).astype(np.float32)})[0]


@pytest.mark.parametrize(
    ("kind", "kernel", "attributes"),
    [
        ("Conv", (5, 4, 3, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        ("MaxPool", None, {"auto_pad": "SAME_LOWER", "kernel_shape": [3, 2], "strides": [2, 2]}),
        ("AveragePool", None, {"auto_pad": "SAME_LOWER", "kernel_shape": [2, 2]}),
        ("ConvTranspose", (4, 3, 3, 3), {"output_shape": [14, 16], "strides": [2, 2]}),
        ("ConvTranspose", (4, 3, 4, 4), {"output_shape": [13, 15], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ],
)
def test_padding_is_written_out(kind, kernel, attributes):
    weight = None if kernel is None else np.random.RandomState(0).standard_normal(kernel).astype(np.float32)
    model = _model(kind, weight, **attributes)
    before = _run(model)
    onnx_pads.write_out(model)
    assert {a.name for a in model.graph.node[0].attribute} & {"auto_pad", "output_shape"} == set()
    np.testing.assert_array_equal(_run(model), before)


def test_what_litert_pads_itself_is_left_alone():
    model = _model("MaxPool", None, auto_pad="SAME_UPPER", kernel_shape=[3, 3], strides=[2, 2])
    wanted = model.SerializeToString()
    onnx_pads.write_out(model)
    assert model.SerializeToString() == wanted
