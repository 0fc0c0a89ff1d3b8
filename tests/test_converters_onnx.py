from __future__ import annotations

import numpy as np
import pytest

from edgekit import formats, tools
from edgekit.converters import onnx_to_litert
from edgekit.errors import ConversionError, MissingPackageError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper, parser  # noqa: E402  # after the check that onnx is there

CUBE = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,4,4,4] image, float[1,4,4,4] unused, float[2,3] side) => (float[1,4,4,4] z_0, float[1,4,4,4] a, float[2,3] doubled)
<float[4,4,3,3] w, float[4,1,1] slope> {
  found = Conv<pads = [1,1,1,1]>(image, w)
  z_0 = PRelu(found, slope)
  a = Neg(found)
  doubled = Add(side, side)
}
"""
DYNAMIC = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,1,height,8] image) => (float[1] y)
<float[2,1,3,3] w> {
  found = Conv(image, w)
  shape = Constant<value_ints = [1, -1]>()
  flat = Reshape(found, shape)
  y = ReduceMean<axes = [1], keepdims = 0>(flat)
}
"""
BRANCH = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,4] x) => (float[1,4] y) {
  total = ReduceSum<keepdims = 0>(x)
  zero = Constant<value = float {0.0}>()
  positive = Greater(total, zero)
  y = If(positive) <then_branch = yes () => (float[1,4] p) { p = Relu(x) }, else_branch = no () => (float[1,4] n) { n = Neg(x) }>
}
"""


@pytest.fixture(scope="module")
def onnx2tf():
    pytest.importorskip("uv")
    return tools.install("onnx2tf")


def _opened(tmp_path, text, inputs=None, **weights):
    proto = parser.parse_model(text)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items())
    onnx.save(_with_colon(proto), tmp_path / "net.onnx")
    return formats.open(str(tmp_path / "net.onnx"), inputs)


def _with_colon(proto):
    """The text form cannot write a name such as `z:0`, which exporters make."""
    names = (value for value in proto.graph.output if value.name == "z_0")
    for value in names:
        value.name = "z:0"
    for node in proto.graph.node:
        node.output[:] = ["z:0" if name == "z_0" else name for name in node.output]
    return proto


def _check(model, made, tolerance=1e-5):
    rng = np.random.RandomState(5)
    feeds = {s.name: rng.standard_normal(s.shape).astype(s.dtype) for s in model.signature.inputs}
    right, got = formats.session(model).run(feeds), formats.session(made).run(feeds)
    assert list(got) == list(right)
    for name, wanted in right.items():
        np.testing.assert_allclose(got[name], wanted, rtol=tolerance, atol=tolerance)


def test_without_the_tool_the_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_TOOLS", str(tmp_path / "none"))
    model = _opened(tmp_path, DYNAMIC, {"image": (1, 1, 8, 8)}, w=np.ones((2, 1, 3, 3)))
    with pytest.raises(MissingPackageError) as error:
        onnx_to_litert.convert(model, tmp_path)
    assert error.value.hint == "edgekit tools install onnx2tf"
    assert not list(tmp_path.glob("*.tflite"))


def test_control_flow_and_contributed_operators_are_refused_by_layer(tmp_path):
    with pytest.raises(ConversionError, match=r"control flow \(If in layer y\)"):
        onnx_to_litert.check_operators(_opened(tmp_path, BRANCH).handle, "net")
    node = helper.make_node("FusedGemm", ["x", "x"], ["y"], name="dense", domain="com.microsoft")
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 2])] for n in "xy"]
    with pytest.raises(ConversionError, match=r"custom operator com.microsoft::FusedGemm in layer dense"):
        onnx_to_litert.check_operators(helper.make_model(helper.make_graph([node], "g", *ends)), "net")


@pytest.mark.parametrize(
    ("wanted", "got", "first"),
    [((1, 2, 3, 4), (1, 3, 4, 2), (0, 3, 1, 2)), ((1, 4, 4, 4), (1, 4, 4, 4), (0, 1, 2, 3)), ((2, 3), (3, 2), (1, 0))],
)
def test_orders_of_axes_start_with_the_likely_one(wanted, got, first):
    assert onnx_to_litert._orders(wanted, got)[0] == first
    assert onnx_to_litert._orders((1, 2), (1, 2, 1)) == []


@pytest.mark.slow
def test_a_cube_keeps_its_layout_names_order_and_slopes(tmp_path, onnx2tf):
    """C = H = W: nothing can be told from sizes. One input is unused, one name has a colon."""
    rng = np.random.RandomState(0)
    model = _opened(tmp_path, CUBE, w=rng.randn(4, 4, 3, 3), slope=np.array([0.1, 0.3, 0.5, 0.9]).reshape(4, 1, 1))
    made = onnx_to_litert.convert(model, tmp_path)
    assert [s.name for s in made.signature.inputs] == ["image", "unused", "side"]
    assert [s.name for s in made.signature.outputs] == ["z:0", "a", "doubled"]
    assert made.signature.inputs[0].layout == made.signature.outputs[0].layout == "NCHW"
    _check(model, made)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.onnx", "net.tflite"]


@pytest.mark.slow
@pytest.mark.parametrize("height", [8, 13])
def test_a_dynamic_height_is_right_at_two_sizes(tmp_path, onnx2tf, height):
    model = _opened(tmp_path, DYNAMIC, {"image": (1, 1, height, 8)}, w=np.random.RandomState(0).randn(2, 1, 3, 3))
    _check(model, onnx_to_litert.convert(model, tmp_path))


@pytest.mark.slow
def test_an_operator_that_onnx2tf_does_not_know_is_named(tmp_path, onnx2tf):
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[1,4,4] x) => (float[1] y) { y = Det(x) }
    """
    with pytest.raises(ConversionError, match="Det in layer") as error:
        onnx_to_litert.convert(_opened(tmp_path, text), tmp_path)
    assert "\n" not in error.value.message


RESIZES = """
<ir_version: 8, opset_import: ["" : 19]>
net (float[1,2,6,8] x) => (float[1,2,9,12] above, float[1,2,12,16] below, float[1,2,3,4] smooth)
<float[4] more = {1, 1, 1.5, 1.5}, float[4] twice = {1, 1, 2, 2}, float[4] half = {1, 1, 0.5, 0.5}> {
  above = Resize<mode = "nearest">(x, , more)
  below = Resize<mode = "nearest", nearest_mode = "floor">(x, , twice)
  smooth = Resize<mode = "linear", antialias = 1>(x, , half)
}
"""


@pytest.mark.slow
def test_resizes_that_litert_lacks_become_what_it_has(tmp_path, onnx2tf):
    onnx.save(parser.parse_model(RESIZES), tmp_path / "net.onnx")
    model = formats.in_float32(formats.open(str(tmp_path / "net.onnx")))
    made = onnx_to_litert.convert(model, tmp_path)
    assert any("resize-nearest" in notice for notice in made.notices)
    _check(model, made)
