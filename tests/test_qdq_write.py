"""QDQ graphs against the float model they came from, in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit.qdq import protos, rounding, stream, write
from edgekit.quantize.grid import Affine
from tests.decibels import sqnr_db

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


def net() -> onnx.ModelProto:
    """Two convolutions, a clip that the grid can absorb, a residual sum, and a dense layer."""
    rng = np.random.default_rng(0)
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[1, 4, 8, 8] x) => (float[1, 5] y)
    { a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)  c = Clip (a, low, high)  d = Conv <group = 4, pads = [1, 1, 1, 1]> (c, w2)  e = Add (d, c)
      p = GlobalAveragePool (e)  f = Flatten (p)  y = Gemm <transB = 1> (f, w3, b3) }"""
    model = onnx.parser.parse_model(text)
    shapes = {"w1": (4, 4, 3, 3), "b1": (4,), "w2": (4, 1, 3, 3), "w3": (5, 4), "b3": (5,)}
    for name, shape in shapes.items():
        protos.set_constant(model, name, (rng.standard_normal(shape) * 0.5).astype(np.float32))
    protos.set_constant(model, "low", np.float32(0))
    protos.set_constant(model, "high", np.float32(6))
    return protos.canonical(onnx.shape_inference.infer_shapes(model))


def quantized(bits: int, folder: Path, method: str = "second-order"):
    model = net()
    rng = np.random.default_rng(1)
    samples = [{"x": rng.standard_normal((1, 4, 8, 8)).astype(np.float32)} for _ in range(8)]
    seen = stream.histograms(model, samples, lambda *_: None)
    weights = rounding.round_weights(model, samples, seen, folder, method=method)
    return model, write.write(weights, seen, write.Policy(bits))


def fidelity_db(model, made) -> float:
    rng = np.random.default_rng(2)
    feeds = [{"x": rng.standard_normal((1, 4, 8, 8)).astype(np.float32)} for _ in range(16)]
    right, got = (np.concatenate([session.run(None, f)[0] for f in feeds]) for session in map(protos.session, (model, made)))
    return sqnr_db(right, got)


def test_sixteen_bit_activations_lose_less_than_eight(tmp_path):
    eight, sixteen = (fidelity_db(*quantized(bits, tmp_path)) for bits in (8, 16))
    assert 25 < eight < sixteen


def test_an_eight_bit_clip_is_left_to_the_grid(tmp_path):
    _, made = quantized(8, tmp_path)
    assert "Clip" not in {node.op_type for node in made.graph.node}


def test_biases_are_stored_in_steps_of_input_times_weight_scale(tmp_path):
    _, made = quantized(8, tmp_path)
    values = protos.constants(made)
    scales = {node.input[0]: values[node.input[1]] for node in made.graph.node if node.op_type == "DequantizeLinear"}
    assert values["b1/stored"].dtype == np.int32
    assert np.allclose(scales["b1/stored"], scales["w1/stored"] * scales["x/stored"], rtol=1e-6)


def test_equal_scales_and_zero_points_are_stored_once_but_for_zero_points_of_weights(tmp_path):
    """What turns int8 weights to uint8 in onnxruntime refuses zero points that layers share."""
    _, made = quantized(8, tmp_path)
    steps = [node for node in made.graph.node if node.op_type.endswith("uantizeLinear")]
    stored = {tensor.name: (tensor.data_type, tuple(tensor.dims), tensor.raw_data) for tensor in made.graph.initializer}
    weights = [node.input[2] for node in steps if stored[node.input[2]][0] == onnx.TensorProto.INT8]
    assert len(set(weights)) == len(weights) == 3
    others = {name for node in steps for name in node.input[1:]}.difference(weights)
    assert len({stored[name] for name in others}) == len(others)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_names_of_parameters_avoid_those_of_the_graph():
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> net (float[1] q0) => (float[1] q2) { q2 = Relu (q0) }')
    names = protos.free_names(model, "q")
    assert [next(names), next(names)] == ["q1", "q3"]


def test_a_stream_gives_what_the_whole_model_gives(tmp_path):
    model = net()
    sample = {"x": np.random.default_rng(3).standard_normal((1, 4, 8, 8)).astype(np.float32)}
    flow = stream.over(model, [sample], tmp_path)
    flow.advance(2)
    flow.advance(4)
    assert np.allclose(next(flow.values("e")), stream.taps(model, ["e"])(sample)["e"], atol=1e-6)


def test_what_a_node_leaves_out_is_no_value(tmp_path):
    a = onnx.helper.make_node("Dropout", ["x"], ["a", ""])
    b = onnx.helper.make_node("Clip", ["a", "", "top"], ["y"])
    c = onnx.helper.make_node("Neg", ["y"], ["z"])
    edges = [[onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4])] for name in "xz"]
    model = onnx.helper.make_model(onnx.helper.make_graph([a, b, c], "net", *edges), opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    protos.set_constant(model, "top", np.array(1, np.float32))
    flow = stream.over(model, [{"x": np.array([[-3, 0, 0.5, 2]], np.float32)}], tmp_path)
    flow.advance(1)
    flow.advance(2)
    assert np.array_equal(next(flow.values("y")), [[-3, 0, 0.5, 1]])


def test_what_rounding_an_activation_always_takes_away_a_bias_gives_back(tmp_path):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> net (float[4, 3] x) => (float[4, 2] y) { y = Gemm (x, w, b) }')
    weight = np.array([[1, 2], [-3, 4], [5, -6]], np.float32)
    protos.set_constant(model, "w", weight)
    protos.set_constant(model, "b", np.zeros(2, np.float32))
    model = protos.canonical(model)
    samples = [{"x": np.random.default_rng(seed).uniform(0.3, 0.4, (4, 3)).astype(np.float32)} for seed in range(8)]
    seen = stream.histograms(model, samples, lambda *_: None)
    grids = {"x": Affine(1.0, 0, 0, 255)}  # on which all that was seen becomes zero
    flow = stream.over(model, samples, tmp_path, grids)
    assert all((values == 0).all() for values in flow.values("x"))
    lost, kept = (protos.constants(rounding.round_weights(model, samples, seen, tmp_path, grids=given).proto)["b"] for given in (grids, None))
    assert np.allclose(lost, np.full(3, 0.35) @ weight, atol=0.05)
    assert np.abs(kept).max() < 0.01


@pytest.mark.parametrize("bits", [8, 16])
def test_a_probability_that_calibration_has_not_met_is_not_clipped(bits, tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> net (float[1, 1, 4] x) => (float[1, 1, 1] y)
    { s = Sigmoid (x)  r = Reshape (s, shape)  y = ReduceMean <axes = [2]> (r) }"""
    model = onnx.parser.parse_model(text)
    protos.set_constant(model, "shape", np.array([1, 1, 4]))
    model = protos.canonical(onnx.shape_inference.infer_shapes(model))
    seen = stream.histograms(model, [{"x": np.full((1, 1, 4), value, np.float32)} for value in (-4, -3, -2)], lambda *_: None)
    seen["x"] = stream.histograms(model, [{"x": np.full((1, 1, 4), value, np.float32)} for value in (-4, 4)], lambda *_: None)["x"]
    made = write.write(rounding.round_weights(model, [], seen, tmp_path), seen, write.Policy(bits))
    x = np.full((1, 1, 4), 1.5, np.float32)
    assert protos.session(made).run(None, {"x": x})[0][0, 0, 0] == pytest.approx(1 / (1 + np.exp(-1.5)), abs=0.02)
