from __future__ import annotations

import numpy as np
import pytest

from edgekit import formats
from edgekit.budget import breakdown
from edgekit.errors import ConversionError, UsageError
from edgekit.formats import onnx as onnx_reader

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper, parser  # noqa: E402  # after the check that onnx is there

TWO_OUTPUTS = """
<ir_version: 8, opset_import: ["" : 17]>
two (float[1,2,4,4] image) => (float[1,2,4,4] zeta, float[1,2,4,4] alpha) {
  zeta = Relu(image)
  alpha = Neg(image)
}
"""
DYNAMIC = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,1,height,8] image) => (float[1,n] y) {
  shape = Constant<value_ints = [1, -1]>()
  y = Reshape(image, shape)
}
"""


def _save(tmp_path, text, name="net.onnx"):
    onnx.save(parser.parse_model(text), tmp_path / name)
    return str(tmp_path / name)


def test_names_order_and_layout_are_the_files(tmp_path):
    model = formats.open(_save(tmp_path, TWO_OUTPUTS))
    assert [s.layout for s in model.signature.inputs] == ["NCHW"]
    image = np.random.RandomState(0).randn(1, 2, 4, 4).astype(np.float32)
    outputs = formats.session(model).run({"image": image})
    assert list(outputs) == ["zeta", "alpha"] == [s.name for s in model.signature.outputs]
    np.testing.assert_array_equal(outputs["zeta"], np.maximum(image, 0))
    np.testing.assert_array_equal(outputs["alpha"], -image)


def test_a_dynamic_dimension_needs_a_size_and_two_sizes_are_right(tmp_path):
    path = _save(tmp_path, DYNAMIC)
    with pytest.raises(ConversionError, match=r"input image \[1, 1, \?, 8\]: dimension 2 is dynamic"):
        formats.open(path)
    for height in (4, 9):
        model = formats.open(path, {"image": (1, 1, height, 8)})
        assert model.signature.outputs[0].shape == (1, height * 8)
        image = np.random.RandomState(0).randn(1, 1, height, 8).astype(np.float32)
        np.testing.assert_array_equal(formats.session(model).run({"image": image})["y"], image.reshape(1, -1))
    with pytest.raises(UsageError, match="contradicts the model"):
        formats.open(path, {"image": (1, 3, 4, 8)})


def _training_net(batch_norm: bool, mask_used: bool = False):
    ones = numpy_helper.from_array(np.ones(2, np.float32), "ones")
    ratio, training = numpy_helper.from_array(np.float32(0.5), "ratio"), numpy_helper.from_array(np.bool_(True), "training")
    nodes = [helper.make_node("Identity", ["x"], ["normed"])]
    if batch_norm:
        inputs = ["x", "ones", "ones", "ones", "ones"]
        nodes = [helper.make_node("BatchNormalization", inputs, ["normed", "mean", "var"], name="bn1", training_mode=1)]
    nodes.append(helper.make_node("Dropout", ["normed", "ratio", "training"], ["y", "mask"], name="drop"))
    shape = [1, 2, 3, 3]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    outputs += [helper.make_tensor_value_info("mask", TensorProto.BOOL, shape)] * mask_used
    graph = helper.make_graph(nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], outputs, [ones, ratio, training])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_active_dropout_is_switched_off_with_a_notice(tmp_path):
    onnx.save(_training_net(batch_norm=False), tmp_path / "net.onnx")
    model = formats.open(str(tmp_path / "net.onnx"))
    assert model.notices == ("layer drop: Dropout was exported in training mode: switched off",)
    x = np.random.RandomState(0).randn(1, 2, 3, 3).astype(np.float32)
    np.testing.assert_array_equal(formats.session(model).run({"x": x})["y"], x)


def test_batch_normalization_in_training_mode_is_refused_by_layer(tmp_path):
    onnx.save(_training_net(batch_norm=True), tmp_path / "net.onnx")
    with pytest.raises(ConversionError, match="training mode: BatchNormalization in layer bn1") as error:
        formats.open(str(tmp_path / "net.onnx"))
    assert "model.eval()" in error.value.hint
    onnx.save(_training_net(batch_norm=False, mask_used=True), tmp_path / "mask.onnx")
    with pytest.raises(ConversionError, match="gives its mask to mask"):
        formats.open(str(tmp_path / "mask.onnx"))


@pytest.mark.filterwarnings("ignore")
def test_an_export_in_training_mode_has_moved_the_statistics(tmp_path):
    """Why such a file is refused rather than switched: its stored statistics are no longer the model's."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).train()
    before = net[1].running_var.clone()
    mode = torch.onnx.TrainingMode.TRAINING
    torch.onnx.export(net, (torch.randn(1, 3, 8, 8),), tmp_path / "n.onnx", dynamo=False, training=mode, do_constant_folding=False)
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "n.onnx").graph.initializer}
    assert np.abs(stored["1.running_var"] - before.numpy()).max() > 1e-3


def test_custom_operators_are_refused_by_name_and_layer(tmp_path):
    node = helper.make_node("Magic", ["x"], ["y"], name="head/magic", domain="my.company")
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [1])] for n in "xy"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.company", 1)]
    proto = helper.make_model(helper.make_graph([node], "g", *ends), opset_imports=opsets, ir_version=8)
    onnx.save(proto, tmp_path / "net.onnx")
    with pytest.raises(ConversionError, match=r"custom operator my.company::Magic in layer head/magic"):
        formats.open(str(tmp_path / "net.onnx"))


def _external(tmp_path, location="weights.bin"):
    weight = numpy_helper.from_array(np.arange(1024, dtype=np.float32), "w")
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [1024])] for n in "xy"]
    proto = helper.make_model(helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", *ends, [weight]), ir_version=8)
    onnx.save(proto, tmp_path / "net.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    if location != "weights.bin":
        proto = onnx.load(tmp_path / "net.onnx", load_external_data=False)
        for entry in proto.graph.initializer[0].external_data:
            entry.value = location if entry.key == "location" else entry.value
        (tmp_path / "net.onnx").write_bytes(proto.SerializeToString())
    return str(tmp_path / "net.onnx")


def test_external_data_is_read_and_is_part_of_the_digest(tmp_path):
    model = formats.open(_external(tmp_path))
    np.testing.assert_array_equal(formats.session(model).run({"x": np.zeros(1024, np.float32)})["y"], np.arange(1024))
    (tmp_path / "weights.bin").write_bytes(np.zeros(1024, np.float32).tobytes())
    assert formats.open(str(tmp_path / "net.onnx")).digest != model.digest


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "sub/../../secret.bin"])
def test_external_data_outside_the_folder_is_refused(tmp_path, location):
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    (tmp_path / "model").mkdir()
    with pytest.raises(ConversionError, match="outside the model's folder"):
        formats.open(_external(tmp_path / "model", location))


def test_external_data_that_is_missing_or_short_is_refused(tmp_path):
    path = _external(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(100))
    with pytest.raises(ConversionError, match=r"ends beyond weights.bin"):
        formats.open(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ConversionError, match=r"missing: weights.bin"):
        formats.open(path)


def test_a_truncated_file_is_refused(tmp_path):
    path = _save(tmp_path, TWO_OUTPUTS)
    (tmp_path / "short.onnx").write_bytes((tmp_path / "net.onnx").read_bytes()[:-20])
    with pytest.raises(ConversionError, match=r"short.onnx: not a readable|short: not a valid"):
        formats.open(str(tmp_path / "short.onnx"))
    assert path


def test_preparation_folds_and_proves_itself(tmp_path):
    from edgekit.legalize import onnx_prepare

    text = """
    <ir_version: 7, opset_import: ["" : 11]>
    net (float[1,1,height,8] image) => (float[a,b] y) {
      shape = Shape(image)
      one = Constant<value = int64[1] {2}>()
      zero = Constant<value = int64[1] {0}>()
      height = Gather(shape, one)
      minus = Constant<value = int64[1] {-1}>()
      wanted = Concat<axis = 0>(height, minus)
      flat = Reshape(image, wanted)
      y = Softmax<axis = 1>(flat)
    }
    """
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    prepared = onnx_prepare.prepare(formats.open(str(tmp_path / "net.onnx"), {"image": (1, 1, 6, 8)}))
    assert not {"Shape", "Gather", "Concat"} & {node.op_type for node in prepared.model.handle.graph.node}
    assert prepared.model.handle.opset_import[0].version == onnx_prepare.OPSET


def test_what_is_newer_than_onnx_reads_is_told_by_number(tmp_path):
    path = _save(tmp_path, TWO_OUTPUTS)
    for change in (lambda proto: setattr(proto, "ir_version", 99), lambda proto: setattr(proto.opset_import[0], "version", 99)):
        proto = parser.parse_model(TWO_OUTPUTS)
        change(proto)
        onnx.save(proto, path)
        with pytest.raises(ConversionError, match=r"99 is newer than the installed onnx reads"):
            formats.open(path)


@pytest.mark.parametrize(
    ("kind", "dtype", "body"),
    [
        ("NonZero", "float", "places = NonZero(x)\n y = Cast<to = 1>(places)"),
        (
            "NonMaxSuppression",
            "int64",
            "boxes = Reshape(x, box)\n scores = ReduceMax<axes = [2]>(boxes)\n s = Reshape(scores, score)\n y = NonMaxSuppression(boxes, s, most)",
        ),
    ],
)
def test_an_output_as_long_as_the_values_make_it_is_refused_by_operator(tmp_path, kind, dtype, body):
    constants = "<int64[3] box = {1,2,4}, int64[3] score = {1,1,2}, int64 most = {3}>"
    text = f'<ir_version: 8, opset_import: ["" : 17]> net (float[2,4] x) => ({dtype}[a,b] y) {constants} {{ {body} }}'
    with pytest.raises(ConversionError, match=rf"size of the output y depends on values: {kind}"):
        formats.open(_save(tmp_path, text))


def test_half_precision_is_widened_exactly_where_a_reference_is_made(tmp_path):
    weights = np.random.RandomState(0).randn(4, 3).astype(np.float16)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.float16(1.5), "v")),
        helper.make_node("Cast", ["count"], ["c"], to=TensorProto.FLOAT16),
        helper.make_node("Add", ["h", "one"], ["a"]),
        helper.make_node("Mul", ["a", "c"], ["y"]),
    ]
    half = TensorProto.FLOAT16
    ends = [helper.make_tensor_value_info(*end) for end in (("x", half, [1, 4]), ("count", TensorProto.INT64, [1]), ("y", half, [1, 3]))]
    graph = helper.make_graph(nodes, "g", ends[:2], ends[2:], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "net.onnx")
    model = formats.in_float32(formats.open(str(tmp_path / "net.onnx")))
    assert [s.dtype for s in (*model.signature.inputs, *model.signature.outputs)] == ["float32", "int64", "float32"]
    assert "half precision" in model.notices[-1]
    x = np.random.RandomState(1).randn(1, 4).astype(np.float32)
    got = formats.session(model).run({"x": x, "count": np.array([2])})["y"]
    np.testing.assert_allclose(got, (x @ weights.astype(np.float32) + 1.5) * 2, rtol=1e-6)


def test_bytes_beside_the_file_count_as_the_models(tmp_path):
    text = '<ir_version: 8, opset_import: ["" : 17]> net (float[1,64] x) => (float[1,64] y) <float[64] w> { y = Mul(x, w) }'
    proto = parser.parse_model(text)
    del proto.graph.initializer[:]
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(64, dtype=np.float32), "w"))
    onnx.save_model(proto, tmp_path / "net.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    graph = formats.module("onnx").graph(formats.open(str(tmp_path / "net.onnx")))
    assert graph.file_bytes == sum((tmp_path / name).stat().st_size for name in ("net.onnx", "w.bin"))
    assert sum(row.share for row in breakdown.layers(graph)) == pytest.approx(1)


SIZED = """
<ir_version: 8, opset_import: ["" : 17]>
net (int64[3] x, float[6] z, int64 d, int64[2] s) => (%s y) <float[2] v = {0, 1}, int64[1] zero = {0}, int64[1] two = {2}, int64 one = {1}> { %s }
"""


@pytest.mark.parametrize(("kind", "body", "said"), [
    ("float[n,m]", "y = OneHot(x, d, v)", "OneHot in layer y takes it from d"),
    ("float[n,m]", "most = ReduceMax<keepdims = 0>(x)  depth = Add(most, one)  y = OneHot(x, depth, v)", "OneHot in layer y takes it from depth"),
    ("float[n,m]", "most = ReduceMax<keepdims = 0>(x)  o = OneHot(x, most, v)  y = Neg(o)", "OneHot in layer o takes it from most"),
    ("float[n,m]", "y = Reshape(z, s)", "Reshape in layer y takes it from s"),
    ("float[n,m]", "y = Expand(z, s)", "Expand in layer y takes it from s"),
    ("float[n]", "e = Slice(s, zero, two)  f = Gather(e, zero)  y = Slice(z, zero, f)", "Slice in layer y takes it from f"),
])  # fmt: skip
def test_a_size_that_an_input_gives_is_refused_by_name(kind: str, body: str, said: str) -> None:
    """It was taken from a run on zeros, or that run's own error was passed on."""
    with pytest.raises(ConversionError, match=f"the size of the output y depends on values: {said}") as caught:
        onnx_reader.from_proto(onnx.parser.parse_model(SIZED % (kind, body)), "net", "0", {})
    assert "only known when it runs" in (caught.value.hint or "")


def test_a_run_that_fails_names_the_size_that_an_input_gives() -> None:
    text = SIZED % ("float[3]", "o = OneHot(x, d, v)  axes = Constant<value_ints = [1]>()  y = ReduceSum<keepdims = 0>(o, axes)")
    model = onnx_reader.from_proto(onnx.parser.parse_model(text), "net", "0", {})
    feeds = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in model.signature.inputs}
    with pytest.raises(ConversionError, match="Depth is negative; a size depends on values: OneHot in layer o takes it from d"):
        formats.session(model).run(feeds)
    assert formats.session(model).run(feeds | {"d": np.array(4)})["y"].shape == (3,)


@pytest.mark.parametrize(("kind", "body", "shape"), [
    ("float[n,m]", "q = Shape(z)  f = Gather(q, zero)  depth = Squeeze(f, zero)  y = OneHot(x, depth, v)", (3, 6)),
    ("float[n]", "b = Unsqueeze(d, zero)  e = Add(b, two)  y = Slice(z, b, e)", (2,)),
])  # fmt: skip
def test_a_size_that_only_looks_open_is_found(kind: str, body: str, shape: tuple[int, ...]) -> None:
    model = onnx_reader.from_proto(onnx.parser.parse_model(SIZED % (kind, body)), "net", "0", {})
    assert model.signature.outputs[0].shape == shape
