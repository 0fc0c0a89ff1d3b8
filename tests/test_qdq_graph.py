"""Changes of a float ONNX graph before it is quantized, and of a QDQ graph's edges, against onnxruntime on both sides."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edgekit import formats
from edgekit.qdq import edges, equalized, fold, protos, rounding, sensitivity, stream, write
from edgekit.qdq.source import Source
from edgekit.quantize import equalize
from tests.decibels import sqnr_db

onnx = pytest.importorskip("onnx")


def made(text: str, shapes: dict[str, tuple[int, ...]], *, seed: int = 0, **constants: float) -> onnx.ModelProto:
    """A canonical model of onnx's text form, with seeded weights of `shapes` and single numbers."""
    rng = np.random.default_rng(seed)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    for name, shape in shapes.items():
        protos.set_constant(model, name, (rng.standard_normal(shape) * 0.5).astype(np.float32))
    for name, value in constants.items():
        protos.set_constant(model, name, np.float32(value))
    return protos.canonical(onnx.shape_inference.infer_shapes(model))


def feeds(count: int, shape: tuple[int, ...] = (1, 4, 8, 8), seed: int = 1) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def outputs(model: onnx.ModelProto, samples) -> np.ndarray:
    session = protos.session(model)
    return np.concatenate([session.run(None, sample)[0].reshape(-1) for sample in samples])


def test_constants_go_into_the_layers_beside_them():
    text = """net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
    { a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)  b = Mul (two, a)  c = Add (b, per_channel)  d = HardSwish (c)  e = Mul (half, d)
      f = Add (e, shift)  g = Conv <group = 4, pads = [1, 1, 1, 1]> (f, w2)  h = Sub (one, g)  y = Div (h, three) }"""
    shapes = {"w1": (4, 4, 3, 3), "b1": (4,), "w2": (4, 1, 3, 3), "per_channel": (1, 4, 1, 1)}
    model = made(text, shapes, two=2.0, half=0.5, shift=0.3, one=1.0, three=3.0)
    folded, count = fold.folded(model)
    assert count == 5
    assert [node.op_type for node in folded.graph.node] == ["Conv", "HardSwish", "Add", "Conv"]  # padding keeps the shift where it is
    assert np.allclose(outputs(folded, feeds(3)), outputs(model, feeds(3)), atol=2e-6)


def test_a_constant_that_varies_over_places_is_left():
    text = "net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Conv <pads = [1, 1, 1, 1]> (x, w1)  y = Mul (a, map) }"
    model = made(text, {"w1": (4, 4, 3, 3), "map": (1, 1, 8, 8)})
    assert fold.folded(model)[1] == 0


def uneven(model: onnx.ModelProto) -> onnx.ModelProto:
    """The first layer's channels reach from 0.01 to 30, and the next layer takes that back: field reports of depthwise layers."""
    gains = np.array([0.01, 1.0, 5.0, 30.0], np.float32)
    values = protos.constants(model)
    protos.set_constant(model, "w1", values["w1"] * gains[:, None, None, None])
    protos.set_constant(model, "w2", values["w2"] / gains[None, :, None, None])
    return model


UNEVEN = """net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
    { a = Conv <group = 4, pads = [1, 1, 1, 1]> (x, w1)  b = Relu (a)  y = Conv (b, w2) }"""


def quantized(model, samples, folder, policy):
    seen = stream.histograms(model, samples, lambda *_: None)
    weights = rounding.round_weights(model, samples, seen, folder, method="nearest")
    return weights, write.write(weights, seen, policy)


def test_equalized_channels_give_the_same_and_quantize_well(tmp_path):
    model = uneven(made(UNEVEN, {"w1": (4, 1, 3, 3), "w2": (4, 4, 1, 1)}))
    samples, right = feeds(8), outputs(model, feeds(4, seed=2))
    level, touched = equalized.equalized(model, samples)
    assert touched
    assert np.allclose(outputs(level, feeds(4, seed=2)), right, rtol=1e-4, atol=1e-5)
    tap = stream.taps(level, ["b"])(samples[0])["b"]
    assert equalize.imbalance(np.abs(tap).max(axis=(0, 2, 3))) < 10

    def cosine(one) -> float:
        got = outputs(quantized(one, samples, tmp_path, write.Policy(8))[1], feeds(4, seed=2))
        return float(right @ got / np.linalg.norm(right) / np.linalg.norm(got))

    assert cosine(model) < 0.95 < 0.998 < cosine(level)


def test_noise_of_activations_adds_up_and_wide_ones_make_none(tmp_path):
    text = """net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
    { a = Conv <pads = [1, 1, 1, 1]> (x, w1)  b = HardSwish (a)  c = Conv <pads = [1, 1, 1, 1]> (b, w2)  y = Add (c, x) }"""
    model, samples = made(text, {"w1": (4, 4, 3, 3), "w2": (4, 4, 3, 3)}), feeds(4)
    weights, eight = quantized(model, samples, tmp_path, write.Policy(8))
    costs = sensitivity.measure(weights.proto, eight, samples)
    assert set(costs) == {"x", "a", "b", "c", "y"}
    total, found = sum(cost.noise for cost in costs.values()), sensitivity.noise_of(weights.proto, eight, samples)
    assert sum(sensitivity.noises(weights.proto, eight, samples)) / len(samples) == pytest.approx(found)
    assert 0.5 * found < total < 2 * found
    order = sensitivity.worth(costs, 0.2 * total)
    assert sensitivity.worth(costs, 0.4 * total) == order[: len(sensitivity.worth(costs, 0.4 * total))]
    chosen = frozenset().union(*order)
    left = sum(cost.noise for name, cost in costs.items() if name not in chosen)
    assert 0 < len(chosen) < 5
    assert left <= 0.2 * total
    assert costs["a"].layers == {"w1": sensitivity.layer_bytes(144)}  # beside HardSwish, which has none
    assert costs["b"].price_bytes() - costs["b"].price_bytes({"w2"}) == sensitivity.layer_bytes(144)
    dear = sensitivity.measure(weights.proto, eight, samples, prices={"w1": 500_000})
    assert [dear[name].price_bytes() > 500_000 for name in ("x", "a", "b", "c", "y")] == [True, True, False, False, False]
    seen = stream.histograms(model, samples, lambda *_: None)
    mixed = write.write(weights, seen, write.Policy(8, wide=chosen))
    assert sensitivity.noise_of(weights.proto, mixed, samples) < 0.4 * found


def test_integer_edges_store_what_the_float_ones_did(tmp_path):
    model, samples = made(UNEVEN, {"w1": (4, 1, 3, 3), "w2": (4, 4, 1, 1)}), feeds(4)
    _, whole = quantized(model, samples, tmp_path, write.Policy(8))
    bare, specs = edges.integers(whole)
    into, out = specs["x"], specs["y"]
    assert (into.dtype, out.dtype) == ("uint8", "uint8")
    stored = np.clip(np.rint(samples[0]["x"] / np.float32(into.scale)) + into.zero_point, 0, 255).astype(np.uint8)
    got = protos.session(bare).run([out.name], {into.name: stored})[0]
    right = protos.session(whole).run(["y"], samples[0])[0]
    assert np.allclose((got.astype(np.float32) - out.zero_point) * np.float32(out.scale), right, atol=1e-6)


@pytest.mark.parametrize("mask", [-np.inf, -1e9, -65504.0, float(np.finfo(np.float32).min)])
def test_a_mask_takes_no_part_in_ranges(mask, tmp_path):
    text = "net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Where (keep, x, mask)  y = Softmax <axis = 3> (a) }"
    model = made(text, {}, mask=mask)
    protos.set_constant(model, "keep", np.arange(8) < 6)
    samples = feeds(4)
    seen = stream.histograms(model, samples, lambda *_: None)
    assert -25 < seen["a"].low < -15
    assert seen["a"].high < 10
    _, sixteen = quantized(model, samples, tmp_path, write.Policy(16))
    assert np.abs(outputs(sixteen, samples) - outputs(model, samples)).max() < 2e-3


def test_values_of_all_sizes_are_data():
    text = "net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { y = Mul (x, large) }"
    model = made(text, {}, large=20000.0)
    assert stream.histograms(model, feeds(2), lambda *_: None)["y"].high > 40000


def test_four_bit_weights_take_half_the_bytes_and_shallow_layers_keep_eight(tmp_path):
    text = """net (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
    { a = Conv <group = 16, pads = [1, 1, 1, 1]> (x, w1)  y = Conv <pads = [1, 1, 1, 1]> (a, w2) }"""
    model, samples = made(text, {"w1": (16, 1, 3, 3), "w2": (16, 16, 3, 3)}), feeds(4, (1, 16, 8, 8))
    seen = stream.histograms(model, samples, lambda *_: None)
    weights = rounding.round_weights(model, samples, seen, tmp_path, bits=4)
    proto = write.write(weights, seen, write.Policy(16))
    stored = {t.name: t for t in proto.graph.initializer}
    assert stored["w2/stored"].data_type == onnx.TensorProto.INT4
    assert stored["w1/stored"].data_type == onnx.TensorProto.INT8
    right, got = (outputs(one, samples) for one in (model, proto))
    assert sqnr_db(right, got) > 18  # 6 dB a bit below the 42 of eight


@pytest.mark.parametrize("kind", ["Conv", "Gemm", "MatMul"])
def test_blocks_of_four_bit_weights_have_scales_of_their_own(kind, tmp_path):
    """Half of each output's weights are a hundred times smaller: one scale an output makes zeros of them."""
    sizes = {"Conv": ("1, 64, 4, 4", (8, 64, 1, 1)), "Gemm": ("4, 64", (8, 64)), "MatMul": ("1, 4, 64", (64, 8))}
    shape, weight = sizes[kind]
    node = {"Conv": "y = Conv (x, w, b)", "Gemm": "y = Gemm <transB = 1> (x, w, b)", "MatMul": "y = MatMul (x, w)"}[kind]
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> net (float[{shape}] x) => (float y) {{ {node} }}')
    rng = np.random.default_rng(0)
    small = np.where(np.arange(64) < 32, 0.01, 1.0)
    matrix = rng.standard_normal((8, 64)) * small
    protos.set_constant(model, "w", (matrix.T if kind == "MatMul" else matrix.reshape(weight)).astype(np.float32))
    protos.set_constant(model, "b", rng.standard_normal(8).astype(np.float32))
    model = protos.canonical(onnx.shape_inference.infer_shapes(model))
    large = (1 / small).reshape((1, 64, 1, 1) if kind == "Conv" else (64,)).astype(np.float32)
    samples = [{"x": feed["x"] * large} for feed in feeds(8, tuple(int(size) for size in shape.split(",")))]
    seen, right = stream.histograms(model, samples, lambda *_: None), outputs(model, samples)

    def of_blocks(blocks: bool) -> float:
        weights = rounding.round_weights(model, samples, seen, tmp_path, method="nearest", bits=4, blocks=blocks)
        got = outputs(write.write(weights, seen, write.Policy(16)), samples)
        return sqnr_db(right, got)

    assert of_blocks(False) < 5
    assert of_blocks(True) > 15


def test_a_layer_behind_an_absorbed_clip_is_beside_its_activation(tmp_path):
    text = """net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
    { a = Conv <pads = [1, 1, 1, 1]> (x, w1)  b = Relu (a)  y = Conv <pads = [1, 1, 1, 1]> (b, w2) }"""
    model, samples = made(text, {"w1": (4, 4, 3, 3), "w2": (4, 4, 3, 3)}), feeds(4)
    weights, eight = quantized(model, samples, tmp_path, write.Policy(8))
    costs = sensitivity.measure(weights.proto, eight, samples)
    assert set(costs["b"].layers) == {"w1", "w2"}


def test_weights_of_16_bits_cost_nothing_and_are_stored_as_such(tmp_path):
    model, samples = made(UNEVEN, {"w1": (4, 1, 3, 3), "w2": (4, 4, 1, 1)}), feeds(4)
    costs = sensitivity.measure_weights(model, samples, {"w1": 10, "w2": 20})
    assert all(cost.fine and cost.noise > 0 for cost in costs.values())
    assert [costs[name].price_bytes() for name in ("w1", "w2")] == [10, 20]
    seen = stream.histograms(model, samples, lambda *_: None)

    def noise(fine: frozenset[str]) -> float:
        weights = rounding.round_weights(model, samples, seen, tmp_path, method="nearest", fine=fine)
        proto = write.write(weights, seen, write.Policy(16, fine=fine))
        stored = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
        assert {name for name in ("w1", "w2") if stored[f"{name}/stored"] == onnx.TensorProto.INT16} == fine
        return sensitivity.noise_of(model, proto, samples)

    assert noise(frozenset(("w1", "w2"))) < 0.01 * noise(frozenset())


def test_a_weight_has_its_turn_once_its_layer_computes_in_16_bits():
    cheap = sensitivity.Cost(0.3, 0, {"w": 1}, frozenset(("w",)), fine=True)
    costs = {"w": cheap, "a": sensitivity.Cost(0.2, 100, {"w": 4000}, frozenset(("a",))), "b": sensitivity.Cost(0.5, 100, {}, frozenset(("b",)))}
    assert sensitivity.worth(costs, 0.0) == ({"b"}, {"a"}, {"w"})


def test_channels_are_equalized_only_where_the_outputs_do_not_get_worse(tmp_path):
    net = uneven(made(UNEVEN, {"w1": (4, 1, 3, 3), "w2": (4, 4, 1, 1)}))
    onnx.save(net, tmp_path / "net.onnx")
    sources = [Source(formats.open(str(tmp_path / "net.onnx")), net, {"x": "x"}, {"y": "y"}, feeds(8), tmp_path) for _ in range(2)]
    level, gained = sources[0].level
    assert gained and sources[0].leveled(write.Policy(8)) == (level, gained)
    spoiled = protos.copy(level.proto)
    protos.set_constant(spoiled, "w1", protos.constants(spoiled)["w1"] * 0)
    sources[1].__dict__["level"] = dataclasses.replace(level, proto=spoiled), gained
    assert sources[1].leveled(write.Policy(8)) == (sources[1], ())
