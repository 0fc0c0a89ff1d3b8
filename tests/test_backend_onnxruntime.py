"""The ONNX Runtime backend: what each precision computes and weighs, pass-through, the reduced build's inputs, tapped copies."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from edgekit import formats, target
from edgekit.backends import Artifact, Candidate, Context
from edgekit.backends import onnxruntime as backend
from edgekit.backends.onnxruntime import reduced_build
from edgekit.errors import ConversionError
from edgekit.qdq import protos
from tests.decibels import sqnr_db

onnx = pytest.importorskip("onnx")
SHAPE = (1, 3, 12, 12)


def net(path: Path, scale: float = 0.3) -> formats.Model:
    """Three convolutions (one depthwise), a written-out swish, a pool and a dense layer."""
    rng = np.random.default_rng(0)
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[1, 3, 12, 12] x) => (float[1, 5] scores)
    { a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)  r = Relu (a)
      d = Conv <group = 16, pads = [1, 1, 1, 1]> (r, w2)  s = Sigmoid (d)  e = Mul (d, s)
      c = Conv (e, w3)  p = GlobalAveragePool (c)  f = Flatten (p)  scores = Gemm <transB = 1> (f, w4, b4) }"""
    model = onnx.parser.parse_model(text)
    shapes = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 1, 3, 3), "w3": (32, 16, 1, 1), "w4": (5, 32), "b4": (5,)}
    for name, shape in shapes.items():
        protos.set_constant(model, name, (rng.standard_normal(shape) * scale).astype(np.float32))
    onnx.save(model, path)
    return formats.open(str(path))


def inputs(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.uniform(-1, 1, SHAPE).astype(np.float32)} for _ in range(count)]


def build(model: formats.Model, work: Path, *precisions: str) -> list[Artifact]:
    work.mkdir(exist_ok=True)
    make = backend.prepare(model, Context(target.load("android-arm64-ort"), inputs(8, 1), work))
    return [make(Candidate(precision)) for precision in precisions]


def fidelity_db(model: formats.Model, artifact: Artifact) -> float:
    run, device = formats.session(model), backend.emulate(artifact)
    right, got = (np.concatenate([session.run(x)["scores"] for x in inputs(16, 2)]) for session in (run, device))
    return sqnr_db(right, got)


def test_each_precision_is_smaller_and_as_good_as_its_bits(tmp_path: Path) -> None:
    model = net(tmp_path / "net.onnx")
    made = build(model, tmp_path / "work", "fp32", "fp16", "w8", "w8a8")
    found = [fidelity_db(model, artifact) for artifact in made]
    assert all(value > least for value, least in zip(found, (100, 60, 35, 25), strict=True)), found
    weights = [backend.graph(artifact) for artifact in made]
    stored = [sum(t.stored_bytes for t in graph.tensors if t.constant and len(t.shape) > 1) for graph in weights]
    assert stored[1] <= 0.55 * stored[0] and stored[2] <= 0.27 * stored[0] and stored[3] <= 0.27 * stored[0]


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    model = net(tmp_path / "net.onnx")
    first, second = (build(model, tmp_path / name, "w8a8")[0].path.read_bytes() for name in ("a", "b"))
    assert first == second


def test_a_weight_beyond_half_precision_stays_wide_and_is_named(tmp_path: Path) -> None:
    model = net(tmp_path / "net.onnx")
    weight = next(t for t in model.handle.graph.initializer if t.name == "w3")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.full((32, 16, 1, 1), 1e5, np.float32), "w3"))
    (artifact,) = build(model, tmp_path / "work", "fp16")
    assert any("leaves the range of half precision" in notice for notice in artifact.notices)
    assert fidelity_db(model, artifact) > 60


def test_8_bit_activations_need_calibration(tmp_path: Path) -> None:
    model = net(tmp_path / "net.onnx")
    (tmp_path / "work").mkdir()
    make = backend.prepare(model, Context(target.load("android-arm64-ort"), [], tmp_path / "work"))
    with pytest.raises(ConversionError, match="needs calibration data"):
        make(Candidate("w8a8"))


def test_a_quantized_model_is_passed_through(tmp_path: Path) -> None:
    float_model = net(tmp_path / "net.onnx")
    (artifact,) = build(float_model, tmp_path / "work", "w8a8")
    model = formats.open(str(artifact.path))
    assert (backend.own_precision(model), backend.own_precision(float_model)) == ("w8a8", None)
    (kept,) = build(model, tmp_path / "again", "w8a8")
    assert backend.emulate(kept).run(inputs(1, 3)[0])["scores"].shape == (1, 5)
    with pytest.raises(ConversionError, match="already quantized"):
        build(model, tmp_path / "third", "fp16")


@pytest.mark.parametrize("precision", ["fp32", "fp16", "w8", "w8a8"])
def test_the_reduced_build_has_what_the_ort_form_needs(precision: str, tmp_path: Path) -> None:
    import onnxruntime

    (artifact,) = build(net(tmp_path / "net.onnx"), tmp_path / "work", precision)
    folder = tmp_path / "trim"
    folder.mkdir()
    backend.trim(backend.graph(artifact), folder)
    backend.sources(artifact, folder)
    assert {path.name for path in folder.iterdir()} == set(reduced_build.FILES)
    lists = (folder / "required_operators.config").read_text()
    assert str(tmp_path) not in lists and "QLinearConv" in lists if precision == "w8a8" else "Conv" in lists
    assert '{"inputs"' in (folder / "required_operators_and_types.config").read_text()
    runtime = onnxruntime.InferenceSession(str(folder / "model.ort"), providers=["CPUExecutionProvider"])
    x = inputs(1, 4)[0]
    got, right = runtime.run(None, x)[0], backend.emulate(artifact).run(x)["scores"]
    assert np.abs(got - right).max() <= (0.02 if precision == "w8a8" else 1e-5) * np.abs(right).max()
    saved = json.loads((folder / "estimate.json").read_text())["estimate"]
    assert saved["kind"] == "estimated" and 0 < saved["trimmed_bytes"] < saved["full_bytes"]


def test_tapped_copies_give_every_step_and_the_same_outputs(tmp_path: Path) -> None:
    (artifact,) = build(net(tmp_path / "net.onnx"), tmp_path / "work", "fp32")
    tapped, taps = backend.tapped(artifact, tmp_path / "tapped.onnx")
    x = inputs(1, 5)[0]
    values = backend.emulate(tapped).run(x)
    assert {tap.tensor for tap in taps} == set(values) and [tap.operator for tap in taps] == sorted(tap.operator for tap in taps)
    assert {"Conv", "Gemm", "GlobalAveragePool"} <= {tap.type for tap in taps}
    np.testing.assert_allclose(values["scores"], backend.emulate(artifact).run(x)["scores"], rtol=1e-5)


def test_the_artifact_names_layers_and_counts_macs(tmp_path: Path) -> None:
    made = build(net(tmp_path / "net.onnx"), tmp_path / "work", "fp32", "w8a8")
    macs = 144 * (16 * 27 + 16 * 9 + 32 * 16) + 5 * 32
    for artifact in made:
        assert backend.graph(artifact).macs == macs
    conv = next(o for o in backend.graph(made[1]).operators if o.type == "Conv")
    assert conv.attributes["stored_inputs"][:2] == ["uint8", "int8"] and conv.attributes["channel_inputs"][0] == 1
    assert conv.attributes["stored_outputs"] == ["uint8"]


def test_edges_other_than_float_are_refused(tmp_path: Path) -> None:
    context = Context(target.load("android-arm64-ort"), [], tmp_path)
    with pytest.raises(ConversionError, match="own edges, not int8"):
        backend.prepare(net(tmp_path / "net.onnx"), dataclasses.replace(context, io="int8"))


def test_full_range_products_do_not_saturate(tmp_path: Path) -> None:
    """64 activations of 255 steps times weights of 127: a 16-bit sum of two products would overflow."""
    from edgekit.qdq.rounding import Weights
    from edgekit.qdq.write import Policy, write
    from edgekit.quantize.ranges import histogram

    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[1, 64] x) => (float[1, 4] y) { y = Gemm (x, w, b) }')
    weight = np.where(np.arange(256).reshape(64, 4) % 3, 127, -127).astype(np.float32)
    for name, value in (("w", weight), ("b", np.zeros(4, np.float32))):
        protos.set_constant(model, name, value)
    x = np.full((1, 64), 255, np.float32)
    right = x @ weight
    seen = {"x": histogram(x, 0, 255), "y": histogram(right, float(min(right.min(), 0)), float(max(right.max(), 0)))}
    made = write(Weights(protos.canonical(model), {"w": np.ones(4)}), seen, Policy(8, "minmax"))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    signature = formats.open(str(tmp_path / "m.onnx")).signature
    got = backend.emulate(Artifact(tmp_path / "m.onnx", "onnx", signature, Candidate("w8a8"))).run({"x": x})["y"]
    step = (max(right.max(), 0) - min(right.min(), 0)) / 255
    assert np.abs(got - right).max() <= step


def opened(folder: Path, text: str, shapes: formats.Shapes | None = None, **constants: object) -> formats.Model:
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> net {text}')
    for name, value in constants.items():
        protos.set_constant(made, name, np.asarray(value, np.float32))
    onnx.save(made, folder / "net.onnx")
    return formats.open(str(folder / "net.onnx"), shapes or {})


def made_of(model: formats.Model, precision: str, work: Path) -> Artifact:
    work.mkdir(exist_ok=True)
    rng, spec = np.random.default_rng(3), model.signature.inputs[0]
    samples = [{"x": rng.uniform(-1, 1, spec.shape).astype(np.float32)} for _ in range(8)]
    return backend.prepare(model, Context(target.load("android-arm64-ort"), samples, work))(Candidate(precision, "nearest"))


def test_what_computes_in_float_between_integers_is_named(tmp_path: Path) -> None:
    """An unfolded block of convolution, batch normalization and GELU: fused into integers, but for the GELU, which has no integer kernel."""
    rng = np.random.default_rng(0)
    text = """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
    { c = Conv <pads = [1, 1, 1, 1]> (x, w)  b = BatchNormalization (c, gain, shift, mean, variance)
      r = Div (b, root)  e = Erf (r)  p = Add (e, one)  h = Mul (b, p)  y = Mul (h, half) }"""
    norm = {"gain": [1, 2, 0.5, 1], "shift": [0, 1, -1, 0], "mean": [0.1] * 4, "variance": [1, 4, 1, 2]}
    model = opened(tmp_path, text, root=2**0.5, one=1.0, half=0.5, w=rng.standard_normal((4, 4, 3, 3)) * 0.3, **norm)
    (told,) = (notice for notice in made_of(model, "w8a8", tmp_path / "work").notices if "in float between integers" in notice)
    assert told.startswith("1 operator computes") and "Gelu in layer" in told and "Conv" not in told
    whole = opened(tmp_path, "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { c = Conv (x, w)  y = Relu (c) }", w=rng.standard_normal((4, 4, 1, 1)))
    assert not any("in float" in notice for notice in made_of(whole, "w8a8", tmp_path / "whole").notices)


def test_a_tiny_net_that_does_not_shrink_says_so_with_its_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = {"a": (1, 16), "b": (16, 16), "c": (16, 1)}
    text = "(float[1, 1] x) => (float[1, 1] y) { f = MatMul (x, a) g = Relu (f) h = MatMul (g, b) i = Relu (h) y = MatMul (i, c) }"
    model = opened(tmp_path, text, **{name: rng.standard_normal(shape) for name, shape in sizes.items()})
    artifact = made_of(model, "w8a8", tmp_path / "work")
    (told,) = (notice for notice in artifact.notices if "no smaller than float" in notice)
    assert f"{artifact.path.stat().st_size} bytes against" in told and "largest: b/stored 256" in told
    assert not any("smaller" in notice for notice in made_of(model, "fp32", tmp_path / "float").notices)


@pytest.mark.parametrize("height", [8, 12])
def test_an_open_dimension_is_fixed_in_words_at_each_size(tmp_path: Path, height: int) -> None:
    text = """(float[1, 4, H, 8] x) => (float[1, N] flat, float[1, 4] y)
    { c = Conv (x, w)  flat = Flatten (c)  y = ReduceMean <axes = [2, 3], keepdims = 0> (c) }"""
    model = opened(tmp_path, text, {"x": (1, 4, height, 8)}, w=np.eye(4)[:, :, None, None] * 0.5)
    assert f"input x: dimension 2 was dynamic and is fixed to {height}" in model.notices
    x = np.random.default_rng(1).uniform(-1, 1, (1, 4, height, 8)).astype(np.float32)
    got = backend.emulate(made_of(model, "w8a8", tmp_path / "work")).run({"x": x})
    assert got["flat"].shape == (1, 4 * height * 8)
    assert np.abs(got["flat"] - x.reshape(1, -1) / 2).max() < 0.01 and np.abs(got["y"] - x.mean((2, 3)) / 2).max() < 0.01
