"""Verdicts of ONNX Runtime's providers on ONNX graphs, by the rules read from their sources."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgekit import opset
from edgekit.formats import _onnx_view
from edgekit.qdq import protos

onnx = pytest.importorskip("onnx")


def graph_of(body: str, shape: str = "1, 4, 8, 8", **constants: Any) -> Any:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> net (float[{shape}] x) => (float y) {{ {body} }}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for name, value in constants.items():
        protos.set_constant(model, name, np.asarray(value))
    return _onnx_view.graph(model, 1000)


def verdicts(delegate: str, graph: Any, **options: int) -> dict[str, tuple[str, str]]:
    return {v.type: (v.status, v.reason) for v in opset.judge(graph, delegate, options)}


W = np.zeros((4, 4, 3, 3), np.float32)


@pytest.mark.parametrize(("body", "words"), [
    ("y = Conv (x, w)", ""),
    ("y = Conv (x, x)", "weights is computed at run time"),
    ('y = Conv <auto_pad = "SAME_LOWER"> (x, w)', "SAME_LOWER"),
    ("y = MatMul (x, m)", ""),
    ("y = MaxPool <kernel_shape = [2, 2]> (x)", ""),
    ("y = MaxPool <kernel_shape = [2, 2], ceil_mode = 1> (x)", "ceil mode 1"),
    ("y = MaxPool <kernel_shape = [1, 1]> (x)", "larger than 1 x 1"),
    ("y = AveragePool <kernel_shape = [2, 2], count_include_pad = 1> (x)", "count the padding"),
    ("y = Softmax <axis = 1> (x)", "the last one only"),
    ("y = Softmax (x)", ""),
    ("y = MatMul (x, x)", "ranks 4 and 4|weights is computed"),
    ("y = Sigmoid (x)", "does not have Sigmoid"),
    ("y = Relu (x)", "only behind a float Conv"),
])  # fmt: skip
def test_xnnpack_provider(body: str, words: str) -> None:
    status, reason = next(iter(verdicts("ort_xnnpack", graph_of(body, w=W, m=np.zeros((8, 5), np.float32))).values()))
    assert (status == "accelerated") == (not words)
    assert any(part in reason for part in words.split("|"))


@pytest.mark.parametrize(("shape", "body", "taken"), [
    ("1, 4, 16", "y = Conv (x, w)", True),
    ("1, 4, 16", "y = ConvTranspose (x, w)", True),
    ("1, 4, 8", "y = MaxPool <kernel_shape = [2]> (x)", False),
    ("4, 3", "y = Gemm (x, k, c)", False),
    ("4, 3", "y = Gemm (x, k)", True),
])  # fmt: skip
def test_xnnpack_provider_on_other_ranks(shape: str, body: str, taken: bool) -> None:
    """As ONNX Runtime's Android library placed these models."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> net (float[{shape}] x) => (float y) {{ {body} }}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for name, size in {"w": (4, 4, 3), "k": (3, 5), "c": (4, 5)}.items():
        protos.set_constant(model, name, np.zeros(size, np.float32))
    (status, _), *_ = verdicts("ort_xnnpack", _onnx_view.graph(model, 1000)).values()
    assert (status == "accelerated") == taken


def test_xnnpack_provider_takes_an_activation_with_its_convolution() -> None:
    found = verdicts("ort_xnnpack", graph_of("a = Conv (x, w) y = Relu (a)", w=W))
    assert [status for status, _ in found.values()] == ["accelerated"] * 2


def quantized(weights: str, scales: int) -> Any:
    body = """xq = com.microsoft.QuantizeLinear (x, s, z) xr = com.microsoft.DequantizeLinear (xq, s, z)
    wr = com.microsoft.DequantizeLinear <axis = 0> (wq, ws, wz) a = Conv (xr, wr) aq = com.microsoft.QuantizeLinear (a, s, z)
    y = com.microsoft.DequantizeLinear (aq, s, z)"""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> net (float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) {{ {body} }}'
    )
    shape = () if scales == 1 else (scales,)
    values = {"s": np.float32(0.1), "z": np.uint8(3), "wq": np.zeros((4, 4, 3, 3), weights), "ws": np.full(shape, 0.1, np.float32)}
    for name, value in {**values, "wz": np.zeros(shape, weights)}.items():
        protos.set_constant(model, name, np.asarray(value))
    return _onnx_view.graph(model, 1000)


def test_8_bit_convolutions_by_provider() -> None:
    assert "both must be of one type" in verdicts("ort_xnnpack", quantized("int8", 4))["Conv"][1]
    assert verdicts("ort_xnnpack", quantized("uint8", 1))["Conv"][0] == "accelerated"
    assert verdicts("ort_nnapi", quantized("int8", 4), ort_nnapi_feature_level=4)["Conv"][0] == "accelerated"
    assert "need feature level 3" in verdicts("ort_nnapi", quantized("int8", 4), ort_nnapi_feature_level=2)["Conv"][1]
    assert "int8 weights need a scale per channel" in verdicts("ort_nnapi", quantized("int8", 1))["Conv"][1]
    assert verdicts("ort_cpu", quantized("int8", 4))["Conv"][0] == "accelerated"


def test_nnapi_provider_limits() -> None:
    assert "5 dimensions" in verdicts("ort_nnapi", graph_of("y = Add (x, x)", shape="1, 2, 3, 4, 5"))["Add"][1]
    assert "needs feature level 4" in verdicts("ort_nnapi", graph_of("y = Elu (x)"), ort_nnapi_feature_level=3)["Elu"][1]
    assert "does not have Erf" in verdicts("ort_nnapi", graph_of("y = Erf (x)"))["Erf"][1]


def test_cpu_provider_has_kernels_or_says_that_there_is_none() -> None:
    assert verdicts("ort_cpu", graph_of("y = Erf (x)"))["Erf"][0] == "accelerated"
    assert "does not have Bernoulli" in verdicts("ort_cpu", graph_of("y = Bernoulli (x)"))["Bernoulli"][1]
