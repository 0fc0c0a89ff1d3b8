"""What Hexagon users report, on the HTP simulator: half range, hard-swish, unfolded blocks, integer edges, placement, wrong chips."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgekit import formats, target
from edgekit.backends import Artifact, Candidate, Context, qnn
from edgekit.backends.qnn import locate
from edgekit.errors import ConversionError
from edgekit.hostruntimes import onnxruntime_qnn
from edgekit.qdq import protos
from tests.decibels import sqnr_db
from tests.e2e.cli import edgekit
from tests.test_backend_onnxruntime_reports import detector, normal

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.slow

SOFTPLUS = "(float[1, 6] x) => (float[1, 6] y) { e = Exp (x)  s = Add (e, one)  y = Log (s) }"
BLOCK = "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Conv (x, w)  y = HardSwish (a) }"
NORM = """(float[1, 4, 32] x) => (float[1, 4, 32] y)
    { m = ReduceMean <axes = [-1]> (x)  d = Sub (x, m)  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)  w = Add (v, epsilon)  s = Sqrt (w)
      y = Div (d, s) }"""


def write(folder: Path, text: str, **constants: object) -> Path:
    """A model of onnx's text form with its constants."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> net {text}')
    for name, value in constants.items():
        protos.set_constant(model, name, np.asarray(value, np.float32))
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


def build(path: Path, precision: str, samples: list[np.ndarray], io: str = "float32") -> Artifact:
    (path.parent / "work").mkdir(exist_ok=True)
    context = Context(target.load("hexagon-v75"), [{"x": x} for x in samples], path.parent / "work", io)
    return qnn.prepare(formats.open(str(path)), context)(Candidate(precision, "nearest"))


def test_a_softplus_written_out_is_right_in_half_precision(tmp_path):
    x = np.array([[-3, 0, 5, 11, 12, 20]], np.float32)  # exp(12) is beyond 65504
    artifact = build(write(tmp_path, SOFTPLUS, one=1.0), "fp16", [x])
    got = qnn.emulate(artifact).run({"x": x})["y"]
    assert np.abs(got - np.log1p(np.exp(x.astype(np.float64)))).max() < 0.012  # the HTP approximates it to 0.01


def test_a_norm_written_out_is_right_in_half_precision(tmp_path):
    x = np.random.RandomState(0).randn(1, 4, 32).astype(np.float32) * 400  # squares are beyond 65504
    x[0, 3] = 1.25  # no variance: the square root of epsilon divides
    artifact = build(write(tmp_path, NORM, epsilon=1e-8), "fp16", [x])
    got = qnn.emulate(artifact).run({"x": x})["y"]
    centered = x - x.mean(-1, keepdims=True)
    right = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-8)
    assert np.abs(got - right)[:, :3].max() < 0.02
    assert np.abs(got - right)[:, 3].max() < 0.01


def test_what_leaves_half_precision_is_named_with_its_value(tmp_path):
    path = write(tmp_path, "(float[1, 6] x) => (float[1, 6] y) { huge = Exp (x)  y = Mul (huge, tiny) }", tiny=1e-6)
    with pytest.raises(ConversionError, match=r"Exp: huge reaches 1\.628e\+05, and half precision ends at 65504"):
        build(path, "fp16", [np.full((1, 6), 12.0, np.float32)])


@pytest.mark.parametrize("precision", ["a8w8", "a16w8", "fp16"])
def test_a_hard_swish_reaches_beyond_one(tmp_path, precision):
    rng = np.random.default_rng(0)
    path = write(tmp_path, BLOCK, w=np.eye(4)[:, :, None, None] * 4)
    samples = [rng.uniform(-2.5, 2.5, (1, 4, 8, 8)).astype(np.float32) for _ in range(4)]
    got = qnn.emulate(build(path, precision, samples)).run({"x": samples[0]})["y"]
    a = samples[0] * 4
    assert np.abs(got - a * np.clip(a + 3, 0, 6) / 6).max() < 0.1
    assert got.max() > 9


def test_an_unfolded_block_runs_whole_in_integers(tmp_path):
    """Convolution, batch normalization and a GELU of seven operators, as exporters leave them."""
    rng = np.random.default_rng(0)
    text = """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
    { c = Conv <pads = [1, 1, 1, 1]> (x, w)  b = BatchNormalization (c, gain, shift, mean, variance)
      r = Div (b, root)  e = Erf (r)  p = Add (e, one)  h = Mul (b, p)  y = Mul (h, half) }"""
    norm = {"gain": [1, 2, 0.5, 1], "shift": [0, 1, -1, 0], "mean": [0.1] * 4, "variance": [1, 4, 1, 2]}
    path = write(tmp_path, text, root=2**0.5, one=1.0, half=0.5, w=rng.standard_normal((4, 4, 3, 3)) * 0.3, **norm)
    samples = [rng.standard_normal((1, 4, 8, 8)).astype(np.float32) for _ in range(8)]
    artifact = build(path, "a8w8", samples)
    right, got = (session.run({"x": samples[0]})["y"] for session in (formats.session(formats.open(str(path))), qnn.emulate(artifact)))
    assert np.abs(right - got).max() < 0.1
    assert sqnr_db(right, got) > 30
    kinds = {operator.type for operator in qnn.graph(artifact).operators}
    assert kinds == {"QuantizeLinear", "DequantizeLinear", "Conv", "Gelu"}


def test_integer_edges_hold_what_the_float_ones_stand_for(tmp_path):
    rng = np.random.default_rng(0)
    path = write(tmp_path, BLOCK, w=rng.standard_normal((4, 4, 1, 1)))
    samples = [rng.standard_normal((1, 4, 8, 8)).astype(np.float32) for _ in range(4)]
    artifact = build(path, "a8w8", samples, io="int8")
    (into,), (out,) = artifact.signature.inputs, artifact.signature.outputs
    assert (into.dtype, out.dtype) == ("uint8", "uint8")
    stored = np.clip(np.rint(samples[0] / into.scale) + into.zero_point, 0, 255).astype(np.uint8)
    got = (qnn.emulate(artifact).run({"x": stored})["y"].astype(np.float32) - out.zero_point) * np.float32(out.scale)
    right = formats.session(formats.open(str(path))).run({"x": samples[0]})["y"]
    assert np.abs(got - right).max() < 0.1


def test_a_tiny_net_is_built_and_its_size_told(tmp_path):
    """One to sixteen to one: sums of a single product, which QNN would never finish, and a binary larger than the float model."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(shape) for name, shape in {"a": (1, 16), "b": (16, 16), "c": (16, 1)}.items()}
    text = "(float[1, 1] x) => (float[1, 1] y) { f = MatMul (x, a) g = Relu (f) h = MatMul (g, b) i = Relu (h) y = MatMul (i, c) }"
    path = write(tmp_path, text, **weights)
    samples = [rng.uniform(-1, 1, (1, 1)).astype(np.float32) for _ in range(16)]
    artifact = build(path, "a16w8", samples)
    right = [np.maximum(np.maximum(x @ weights["a"], 0) @ weights["b"], 0) @ weights["c"] for x in samples]
    got = [qnn.emulate(artifact).run({"x": x})["y"] for x in samples]
    assert np.abs(np.array(right) - np.array(got)).max() < 0.03 * np.abs(right).max()
    assert any("no smaller than the float model" in notice for notice in artifact.notices)


@pytest.mark.parametrize("precision", ["a8w8", "a16w8", "fp16"])
def test_bounds_written_as_minimum_and_maximum_hold(tmp_path, precision):
    """The HTP would leave out the first of two scalar bounds."""
    path = write(tmp_path, "(float[1, 64] x) => (float[1, 64] y) { a = Mul (x, two) c = Min (a, one) y = Max (c, zero) }", two=2.0, one=1.0, zero=0.0)
    x = np.linspace(-3, 3, 64, dtype=np.float32)[None]
    got = qnn.emulate(build(path, precision, [x])).run({"x": x})["y"]
    assert np.abs(got - np.clip(2 * x, 0, 1)).max() < 0.03


@pytest.mark.parametrize("body", [
    "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)",
    "y = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 0, 0], count_include_pad = 1> (x)",
])  # fmt: skip
def test_a_padded_average_is_right_in_half_precision(tmp_path, body):
    path = write(tmp_path, f"(float[1, 2, 5, 5] x) => (float[1, 2, 5, 5] y) {{ {body} }}")
    x = np.random.default_rng(0).uniform(1, 20, (1, 2, 5, 5)).astype(np.float32)
    artifact = build(path, "fp16", [x])
    right, got = (session.run({"x": x})["y"] for session in (formats.session(formats.open(str(path))), qnn.emulate(artifact)))
    assert np.abs(right - got).max() < 0.02
    assert any("average-pool-padding" in notice for notice in artifact.notices)


def test_a_refusal_that_the_provider_does_not_explain_names_the_first_operator(tmp_path):
    proto = onnx.load(write(tmp_path, "(float[4] x) => (float[4] y) { a = Relu (x) b = Tan (a) y = Neg (b) }"))

    def refused(part):
        return any(node.op_type == "Tan" for node in part.graph.node)

    assert locate.first_refused(proto, refused) == ("Tan", "b")
    assert locate.first_refused(proto, lambda part: False) is None
    assert all([value.name for value in locate.beginning(proto, end).graph.output] == [name] for end, name in ((1, "a"), (2, "b"), (3, "y")))


def test_a_refusal_names_the_operator(tmp_path):
    path = write(tmp_path, "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Relu (x)  y = Hardmax (a) }")
    with pytest.raises(ConversionError, match=r"does not take Hardmax in layer .* does not have Hardmax"):
        build(path, "a8w8", [np.ones((1, 4, 8, 8), np.float32)])


def test_the_device_reports_where_operators_ran(tmp_path):
    """The two commands of a user: the bundle says for which chip and SDK it was built, the report where everything ran."""
    rng = np.random.default_rng(0)
    write(tmp_path, BLOCK, w=rng.standard_normal((4, 4, 1, 1)))
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((12, 1, 4, 8, 8)).astype(np.float32))
    made = edgekit("package", "net.onnx", "--target", "hexagon-v75", "--calibration", "data.npz", "--rounding", "nearest", "--json", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    done = edgekit("test", "net-hexagon-v75.edgekit", "--device", "virtual:hexagon-v75", "--json", "report.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    text = (tmp_path / "report.json").read_text()
    reported = next(found for found in _all(json.loads(text), "reported") if found)
    assert reported["delegate"] == "hexagon"
    assert reported["nodes"] == reported["total"] > 0
    other = edgekit("test", "net-hexagon-v75.edgekit", "--device", "virtual:hexagon-v68", cwd=tmp_path)
    assert other.returncode != 0
    assert "built for Hexagon v75, and the device is v68" in other.stderr + other.stdout


def _all(document: object, key: str) -> list:
    if isinstance(document, list):
        return [found for item in document for found in _all(item, key)]
    if isinstance(document, dict):
        return [value for name, value in document.items() if name == key] + [found for item in document.values() for found in _all(item, key)]
    return []


@pytest.mark.parametrize("precision", ["a8w8", "mixed"])
def test_scores_beside_boxes_keep_their_resolution(tmp_path, precision):
    """Boxes up to 640 pixels and scores up to 1 in one output: the join is made in half precision."""
    found = detector(tmp_path)
    artifact = build(tmp_path / "net.onnx", precision, [normal(1, 3, 8, 8, seed=seed) for seed in range(16)])
    x = normal(1, 3, 8, 8, seed=99)
    right, got = formats.session(found).run({"x": x})["y"], qnn.emulate(artifact).run({"x": x})["y"]
    assert np.abs(got - right)[:, 4:].max() < 0.02
    assert np.abs(got - right)[:, :4].max() < 6
    assert len(np.unique(got[:, 4:].round(4))) > 64


def test_blocks_of_four_bit_weights_run_on_the_npu(tmp_path):
    """A convolution of single pixels and a bias; the model's operator set is older than blocks."""
    text = "(float[1, 64, 4, 4] x) => (float[1, 32, 4, 4] y) { a = Conv (x, w, b)  y = Relu (a) }"
    path = write(tmp_path, text, w=normal(32, 64, 1, 1) * np.where(np.arange(64) < 32, 0.01, 1.0)[None, :, None, None], b=normal(32, seed=1))
    large = np.where(np.arange(64) < 32, 100.0, 1.0)[None, :, None, None].astype(np.float32)
    samples = [normal(1, 64, 4, 4, seed=seed) * large for seed in range(8)]
    artifact = build(path, "a16w4", samples)
    right, got = (session.run({"x": samples[0]})["y"] for session in (formats.session(formats.open(str(path))), qnn.emulate(artifact)))
    assert sqnr_db(right, got) > 15


def test_the_sdk_is_named():
    assert onnxruntime_qnn.sdk_version().startswith("2.")


@pytest.mark.parametrize(
    ("target_name", "net", "operator", "told"),
    [
        ("hexagon-v75", "(float[1, 4, 8, 8] x) => (int64[1, 1, 8, 8] y)", "ArgMax <axis = 1, select_last_index = 1> (x)", "leave select_last_index"),
        ("hexagon-v75", "(float[1, 4, 8, 8] x) => (float[1, 4, 7, 7] y)", "LpPool <kernel_shape = [2, 2], p = 3> (x)", "write powers"),
        ("hexagon-v68", "(float[5, 1, 3] x) => (float[5, 1, 1, 4] y)", "LSTM <hidden_size = 4> (x, w, r)", "v69 and later do: choose a newer"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(target_name, net, operator, told, tmp_path):
    model, rng = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> net {net} {{ y = {operator} }}'), np.random.default_rng(0)
    for name, shape in {"w": (1, 16, 3), "r": (1, 16, 4)}.items():
        protos.set_constant(model, name, rng.standard_normal(shape).astype(np.float32))
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    sample = {"x": rng.standard_normal(shape).astype(np.float32)}
    onnx.save(model, tmp_path / "net.onnx")
    make = qnn.prepare(formats.open(str(tmp_path / "net.onnx")), Context(target.load(target_name), [sample], tmp_path))
    with pytest.raises(ConversionError, match=f"does not take {operator.split()[0]} in layer y.*{told}"):
        make(Candidate("a16w8", "nearest"))


@pytest.mark.parametrize("precision", ["fp16", "a16w8"])
@pytest.mark.parametrize(("form", "stride"), [("kernel_shape = [2, 2], p = 1", 1), ("kernel_shape = [2, 2], strides = [2, 2], p = 1", 2)])
def test_a_pool_of_the_first_norm_sums_magnitudes(form, stride, precision, tmp_path):
    samples = [normal(1, 4, 8, 8, seed=seed) for seed in range(4)]
    size = 8 if stride == 1 else 4
    path = write(tmp_path, f"(float[1, 4, 8, 8] x) => (float[1, 4, {size - (stride == 1)}, {size - (stride == 1)}] y) {{ y = LpPool <{form}> (x) }}")
    got = qnn.emulate(build(path, precision, samples)).run({"x": samples[0]})["y"]
    windows = np.lib.stride_tricks.sliding_window_view(np.abs(samples[0].astype(np.float64)), (2, 2), (2, 3))[:, :, ::stride, ::stride]
    right = windows.sum((-2, -1))
    assert np.abs(got - right).max() < 1e-3 * right.max()  # half precision's step is 2^-11
