from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from edgekit import formats
from edgekit.errors import ConversionError, UsageError
from edgekit.formats import tflite, tflite_flatbuffer, tflite_reader
from tests.tflite_build import Net, schema
from tests.zoo import fetch

RNG = np.random.RandomState(0)
FOLDED = ("face-detection-short-range", "palm-detection-lite", "pose-detection")


def dense_net(tmp_path: Path, *, dtype: str = "float32", signature: bool = False, batch: int = 1) -> Path:
    """x [batch, 4] -> FULLY_CONNECTED with RELU -> y [batch, 3]; weights of `dtype` behind DEQUANTIZE when not float32."""
    net, weights = Net(), np.arange(12, dtype=np.float32).reshape(3, 4) / 8 - 0.5
    x, y = net.tensor("x", (batch, 4)), net.tensor("y", (batch, 3))
    w = net.constant("w", weights.astype(dtype))
    if dtype != "float32":
        plain = net.tensor("w_float", (3, 4))
        net.add("DEQUANTIZE", [w], [plain], version=2)
        w = plain
    b = net.constant("b", np.array([0.5, -0.25, 0], np.float32))
    net.add("FULLY_CONNECTED", [x, w, b], [y], table="FullyConnectedOptions", fusedActivationFunction=schema.ActivationFunctionType.RELU)
    if signature:
        net.signature({"features": x}, {"scores": y})
    return net.write(tmp_path / "dense.tflite", [x], [y])


def test_names_come_from_the_signature_else_from_the_tensors(tmp_path: Path) -> None:
    plain = formats.open(str(dense_net(tmp_path)))
    assert [s.name for s in (*plain.signature.inputs, *plain.signature.outputs)] == ["x", "y"]
    named = formats.open(str(dense_net(tmp_path, signature=True)))
    assert [s.name for s in (*named.signature.inputs, *named.signature.outputs)] == ["features", "scores"]
    x = RNG.randn(1, 4).astype(np.float32)
    assert np.array_equal(formats.session(named).run({"features": x})["scores"], formats.session(plain).run({"x": x})["y"])


@pytest.mark.parametrize("reference_kernels", [False, True])
def test_runs_as_computed_by_hand(tmp_path: Path, reference_kernels: bool) -> None:
    model = formats.open(str(dense_net(tmp_path)))
    x = RNG.randn(1, 4).astype(np.float32)
    weights = np.arange(12).reshape(3, 4) / 8 - 0.5
    by_hand = np.maximum(x @ weights.T + [0.5, -0.25, 0], 0)
    found = tflite.session(model, reference_kernels=reference_kernels).run({"x": x})["y"]
    assert np.allclose(found, by_hand, atol=1e-6)


def test_graph_tells_operators_tensors_bytes_and_macs(tmp_path: Path) -> None:
    graph = tflite.graph(dense_net(tmp_path))
    (operator,) = graph.operators
    assert (operator.type, operator.version, operator.name, operator.macs) == ("FULLY_CONNECTED", 1, "y", 12)
    assert operator.attributes["fused_activation_function"] == "RELU"
    assert graph.constant_bytes(operator) == 12 * 4 + 3 * 4
    assert [graph.tensors[i].name for i in graph.inputs + graph.outputs] == ["x", "y"]


def test_macs_of_convolutions(tmp_path: Path) -> None:
    net = Net()
    x, y, z = net.tensor("x", (1, 8, 8, 4)), net.tensor("y", (1, 4, 4, 6)), net.tensor("z", (1, 4, 4, 6))
    w, b = net.constant("w", np.zeros((6, 3, 3, 4), np.float32)), net.constant("b", np.zeros(6, np.float32))
    d = net.constant("d", np.zeros((1, 5, 5, 6), np.float32))
    net.add("CONV_2D", [x, w, b], [y], table="Conv2DOptions", strideW=2, strideH=2)
    net.add("DEPTHWISE_CONV_2D", [y, d, b], [z], table="DepthwiseConv2DOptions", strideW=1, strideH=1, depthMultiplier=1)
    graph = tflite.graph(net.write(tmp_path / "c.tflite", [x], [z]))
    assert [o.macs for o in graph.operators] == [16 * 6 * 9 * 4, 16 * 6 * 25]
    assert graph.operators[0].attributes["stride_w"] == 2 and graph.operators[0].attributes["padding"] == "SAME"


def test_quantized_tensors_tell_scales_axis_and_the_signature_its_scale(tmp_path: Path) -> None:
    net = Net()
    x, y = net.tensor("x", (1, 4), "int8", scale=0.5, zero_point=-3), net.tensor("y", (1, 3), "int8", scale=0.25)
    w = net.constant("w", np.ones((3, 4), np.int8), scale=[0.1, 0.2, 0.3], axis=0)
    net.add("FULLY_CONNECTED", [x, w, -1], [y], version=4, table="FullyConnectedOptions")
    model = formats.open(str(net.write(tmp_path / "q.tflite", [x], [y])))
    assert (model.signature.inputs[0].scale, model.signature.inputs[0].zero_point) == (0.5, -3)
    weights = tflite.graph(model).tensors[w]
    assert weights.scale == pytest.approx((0.1, 0.2, 0.3)) and weights.axis == 0 and weights.constant
    assert tflite.graph(model).operators[0].inputs == (x, w, -1)
    assert tflite.traits(tmp_path / "q.tflite") == {"int8"}


def test_a_dynamic_batch_is_fixed_at_one_and_said(tmp_path: Path) -> None:
    path = dense_net(tmp_path, batch=-1)
    model = formats.open(str(path))
    assert model.signature.inputs[0].shape == (1, 4) and "fixed at 1" in model.notices[0]
    assert tflite.graph(path).tensors[0].shape == (-1, 4)


def test_a_fixed_shape_resizes_and_is_written_static(tmp_path: Path) -> None:
    model = formats.open(str(dense_net(tmp_path, batch=-1)), {"x": (5, 4)})
    assert model.signature.outputs[0].shape == (5, 3) and model.notices == ()
    x = RNG.randn(5, 4).astype(np.float32)
    fixed = formats.open(str(tflite.fix_shapes(model, tmp_path / "fixed.tflite")))
    assert fixed.signature == model.signature
    assert np.array_equal(formats.session(model).run({"x": x})["y"], formats.session(fixed).run({"x": x})["y"])


def test_dynamic_dimensions_wrong_names_and_shapes_are_refused(tmp_path: Path) -> None:
    net = Net()
    x, y = net.tensor("image", (1, -1, -1, 3)), net.tensor("y", (1, -1, -1, 3))
    net.add("ABS", [x], [y])
    path = str(net.write(tmp_path / "d.tflite", [x], [y]))
    with pytest.raises(ConversionError, match="dynamic dimensions") as caught:
        formats.open(path)
    assert "--input image=1x?x?x3" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="no input is called 'imag'") as wrong:
        formats.open(path, {"imag": (1, 2, 2, 3)})
    assert wrong.value.hint == "did you mean image?"
    with pytest.raises(UsageError, match="does not fit"):
        formats.open(path, {"image": (1, 2, 2, 4)})
    assert formats.open(path, {"image": (1, 2, 5, 3)}).signature.outputs[0].shape == (1, 2, 5, 3)


def test_custom_and_flex_operators_are_refused_by_name_and_layer(tmp_path: Path) -> None:
    for kind, word in (("MyNms", "LiteRT does not have"), ("FlexMatrixInverse", "Flex")):
        net = Net()
        x, y = net.tensor("x", (1, 4)), net.tensor("head/boxes", (1, 4))
        net.add(kind, [x], [y], custom=True)
        path = net.write(tmp_path / "c.tflite", [x], [y])
        with pytest.raises(ConversionError, match=word) as caught:
            formats.open(str(path))
        assert kind in caught.value.message and "head/boxes" in caught.value.message and caught.value.hint
        assert tflite.graph(path).operators[0].custom


def test_truncated_and_foreign_files_are_refused(tmp_path: Path) -> None:
    data = dense_net(tmp_path).read_bytes()
    broken = tmp_path / "broken.tflite"
    for length in (0, 4, 8, 40, len(data) // 2, len(data) - 60):
        broken.write_bytes(data[:length])
        with pytest.raises(ConversionError):
            tflite.graph(broken)
    broken.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ConversionError, match="not a TFLite file"):
        formats.open(str(broken))
    with pytest.raises(UsageError):
        formats.open(str(tmp_path / "absent.tflite"))


def test_hostile_bytes_end_in_a_graph_or_a_refusal(tmp_path: Path) -> None:
    data = dense_net(tmp_path, dtype="float16", signature=True).read_bytes()
    broken, refused = tmp_path / "broken.tflite", 0
    for seed in range(400):
        chance, flipped = random.Random(seed), bytearray(data)
        for _ in range(chance.randint(1, 4)):
            flipped[chance.randrange(8, len(flipped))] = chance.randrange(256)
        broken.write_bytes(flipped)
        try:
            tflite.graph(broken)
            tflite.to_float(broken, tmp_path / "out.tflite")
        except ConversionError:
            refused += 1
    assert refused > 50


def test_vectors_that_overlap_cannot_multiply_the_work(tmp_path: Path) -> None:
    net = Net()
    tensors = [net.tensor(f"t{i}", (1, 4)) for i in range(2)]
    for _ in range(200):
        net.add("ABS", [tensors[0]], [tensors[1]])
    data = bytearray(net.pack([0], [1]))
    model = schema.Model.GetRootAs(data, 0)
    graph = model.Subgraphs(0)
    vector = graph._tab.Vector(graph._tab.Offset(10)) - 4  # the operators: make the vector claim far more entries than there are
    data[vector : vector + 4] = (2**30).to_bytes(4, "little")
    with pytest.raises(ConversionError, match="claim more than"):
        tflite_reader.parse(bytes(data), tmp_path / "big.tflite")


def test_a_constant_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    net = Net()
    x, y = net.tensor("x", (1, 4)), net.tensor("y", (1, 4))
    w = net.constant("w", np.zeros(4, np.float32))
    net.tensors[w].shape = [5]
    net.add("ADD", [x, w], [y], table="AddOptions")
    with pytest.raises(ConversionError, match="stores 16 bytes"):
        tflite.graph(net.write(tmp_path / "w.tflite", [x], [y]))


def test_constants_outside_the_flatbuffer_in_the_same_file(tmp_path: Path) -> None:
    net, values = Net(), np.array([1, -2, 3, -4], np.float32)
    x, y = net.tensor("x", (1, 4)), net.tensor("y", (1, 4))
    w = net.constant("w", values)
    net.add("ADD", [x, w], [y], table="AddOptions")
    buffer = net.buffers[net.tensors[w].buffer]
    buffer.data, buffer.offset, buffer.size = None, 4096, 16
    path = tmp_path / "far.tflite"
    path.write_bytes(net.pack([x], [y]).ljust(4096, b"\0") + values.tobytes())
    assert tflite.graph(path).tensors[w].stored_bytes == 16
    inside = formats.open(str(tflite.to_float(path, tmp_path / "near.tflite")))
    assert np.array_equal(formats.session(inside).run({"x": np.ones((1, 4), np.float32)})["y"], [values + 1])
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ConversionError, match="past the end"):
        tflite.graph(path)


def test_fp16_weights_are_recognised_and_folded(tmp_path: Path) -> None:
    path = dense_net(tmp_path, dtype="float16", signature=True)
    assert tflite.traits(path) == {"fp16-weights"}
    plain = tflite.to_float(path, tmp_path / "plain.tflite")
    assert tflite.traits(plain) == frozenset()
    assert [o.type for o in tflite.graph(plain).operators] == ["FULLY_CONNECTED"]
    assert [t.name for t in tflite.graph(plain).tensors] == ["x", "y", "w_float", "b"]
    x = {"features": RNG.randn(1, 4).astype(np.float32)}
    assert np.array_equal(formats.session(formats.open(str(path))).run(x)["scores"], formats.session(formats.open(str(plain))).run(x)["scores"])


def test_a_float_copy_can_be_called_by_signature(tmp_path: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter

    plain = tflite.to_float(dense_net(tmp_path, dtype="float16"), tmp_path / "plain.tflite")
    assert Interpreter(str(plain)).get_signature_list() == {"serving_default": {"inputs": ["x"], "outputs": ["y"]}}


def test_old_operator_codes_are_written_in_both_fields(tmp_path: Path) -> None:
    source, plain = fetch.path("face-detection-short-range"), tflite.to_float(fetch.path("face-detection-short-range"), tmp_path / "plain.tflite")
    old, new = (schema.Model.GetRootAs(path.read_bytes(), 0) for path in (source, plain))
    assert old.OperatorCodes(0).BuiltinCode() == 0 and old.OperatorCodes(0).DeprecatedBuiltinCode() == schema.BuiltinOperator.CONV_2D
    codes = [new.OperatorCodes(i) for i in range(new.OperatorCodesLength())]
    assert all(c.BuiltinCode() == c.DeprecatedBuiltinCode() for c in codes) and codes[0].BuiltinCode() == schema.BuiltinOperator.CONV_2D


def test_folded_constants_lie_on_16_byte_boundaries(tmp_path: Path) -> None:
    plain = tflite.to_float(dense_net(tmp_path, dtype="float16"), tmp_path / "plain.tflite")
    data = plain.read_bytes()
    model = schema.Model.GetRootAs(data, 0)
    starts = [b._tab.Vector(b._tab.Offset(4)) for b in map(model.Buffers, range(model.BuffersLength())) if b.DataLength()]
    assert starts and all(start % tflite_flatbuffer.ALIGNMENT_BYTES == 0 for start in starts)


def test_nothing_half_written(tmp_path: Path) -> None:
    path = dense_net(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConversionError):
        tflite.to_float(path, tmp_path / "out.tflite")
    assert [p.name for p in tmp_path.iterdir()] == ["dense.tflite"]


def test_state_is_fresh_for_every_sample_unless_kept() -> None:
    model = formats.open(str(fetch.path("wake-word-alexa")))
    quiet = {"input_audio": np.full((1, 3, 40), -128, np.int8)}
    fresh, kept = tflite.session(model), tflite.session(model, keep_state=True)
    without_state = [fresh.run(quiet)["dense_1"].item() for _ in range(5)]
    with_state = [kept.run(quiet)["dense_1"].item() for _ in range(5)]
    assert len(set(without_state)) == 1 and len(set(with_state)) > 1 and with_state[0] == without_state[0]


def test_wrong_inputs_are_refused(tmp_path: Path) -> None:
    runner = formats.session(formats.open(str(dense_net(tmp_path, signature=True))))
    for wrong in ({"x": np.zeros((1, 4), np.float32)}, {"features": np.zeros((2, 4), np.float32)}, {"features": np.zeros((1, 4))}):
        with pytest.raises(UsageError):
            runner.run(wrong)


@pytest.mark.parametrize("name", FOLDED)
def test_zoo_models_compute_the_same_when_folded(tmp_path: Path, name: str) -> None:
    path = fetch.path(name)
    assert "fp16-weights" in tflite.traits(path)
    assert ("sparse-weights" in tflite.traits(path)) == (name == "pose-detection")
    plain = tflite.to_float(path, tmp_path / "plain.tflite")
    assert not {"DEQUANTIZE", "DENSIFY"} & {o.type for o in tflite.graph(plain).operators}
    both = [formats.open(str(p)) for p in (path, plain)]
    assert both[0].signature == both[1].signature
    x = {s.name: RNG.rand(*s.shape).astype(np.float32) for s in both[0].signature.inputs}
    first, second = (formats.session(m).run(x) for m in both)
    assert all(np.array_equal(first[k], second[k]) and np.abs(first[k]).max() > 1 for k in first)


def test_mediapipe_transposed_convolution_becomes_the_builtin_one(tmp_path: Path) -> None:
    from PIL import Image

    path = fetch.path("selfie-segmentation")
    model = formats.open(str(path))
    assert any("Convolution2DTransposeBias" in notice for notice in model.notices)
    with pytest.raises(ConversionError, match="no reference kernel"):
        tflite.session(model, reference_kernels=True)
    plain = formats.open(str(tflite.to_float(path, tmp_path / "plain.tflite")))
    assert not any(o.custom for o in tflite.graph(plain).operators)
    picture = Image.open(fetch.path("images") / "astronaut.png").convert("RGB").resize((256, 256))
    x = {"input_1": np.asarray(picture, np.float32)[None] / 255}
    mask = formats.session(model).run(x)["activation_10"]
    assert mask.max() > 0.9 and np.array_equal(mask, formats.session(plain).run(x)["activation_10"])
    assert np.allclose(mask, tflite.session(plain, reference_kernels=True).run(x)["activation_10"], atol=1e-3)


def test_a_custom_operator_model_is_refused_by_operator_name() -> None:
    with pytest.raises(ConversionError, match="Landmarks2TransformMatrix"):
        formats.open(str(fetch.path("face-landmark-with-attention")))


def test_basic_pitch_fixes_its_batch_and_keeps_output_names() -> None:
    model = formats.open(str(fetch.path("basic-pitch-tflite")))
    assert [(s.name, s.shape) for s in model.signature.outputs] == [("contour", (1, 172, 264)), ("note", (1, 172, 88)), ("onset", (1, 172, 88))]
    assert model.notices and 500e6 < tflite.graph(model).macs < 550e6


def test_a_resized_model_is_written_with_every_shape_inside(tmp_path: Path) -> None:
    path = fetch.path("basic-pitch-tflite")
    model = formats.open(str(path), {"input_2": (2, 43844, 1)})
    fixed = formats.open(str(tflite.fix_shapes(model, tmp_path / "fixed.tflite")))
    assert fixed.signature == model.signature and fixed.signature.outputs[0].shape == (2, 172, 264)
    graph = tflite.graph(fixed)
    assert not any(-1 in t.shape for t in graph.tensors) and graph.macs == 2 * tflite.graph(path).macs


def test_arithmetic_on_bytes_without_a_scale_is_refused_before_the_runtime_ends_the_process(tmp_path: Path) -> None:
    net = Net()
    x, y = (net.tensor(name, (1, 4), "uint8") for name in "xy")
    net.add("ADD", [x, x], [y], table="AddOptions")
    path = net.write(tmp_path / "net.tflite", [x], [y])
    with pytest.raises(ConversionError, match="ADD in layer y computes on uint8 without a scale"):
        formats.open(str(path))
