from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit import budget, packager, target
from edgekit.backends import Candidate, Context, litert
from edgekit.backends.litert import joins, layers, source, stock, variants
from edgekit.backends.litert.equalized import equalized
from edgekit.backends.litert.running import Interpreter
from edgekit.errors import ConversionError
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.tensors import dequantize, quantize

pytest.importorskip("ai_edge_quantizer")
from tests.litert_models import Builder

QUANTIZED = ("w8", "w8-dynamic", "w8a8", "w8a16")


def floats(random, *shape, scale=1.0):
    return (random.standard_normal(shape) * scale).astype(np.float32)


def samples(count, shape=(1, 8, 8, 3), seed=1):
    random = np.random.default_rng(seed)
    maps = random.standard_normal((count, 1, 2, 2, shape[3])).repeat(4, 2).repeat(4, 3)  # neighbors alike, as in images
    return [{"x": (maps[k] + 0.2 * random.standard_normal(shape)).astype(np.float32)} for k in range(count)]


def net(folder: Path, seed: int = 0):
    random = np.random.default_rng(seed)
    b = Builder(("x", (1, 8, 8, 3)))
    one = b.conv(0, "one", floats(random, 16, 3, 3, 3, scale=0.3), floats(random, 16), relu=True)
    two = b.depthwise(one, "two", floats(random, 1, 3, 3, 16, scale=0.3), floats(random, 16))
    three = b.conv(two, "three", floats(random, 24, 1, 1, 16, scale=0.3), floats(random, 24), relu=True, stride=2)
    flat = b.op("RESHAPE", [three, b.constant("shape", np.array([1, 384], np.int32))], "flat", (1, 384))
    return b.write(folder, b.dense(flat, "y", floats(random, 10, 384, scale=0.1), floats(random, 10)))


def context(folder, calibration, io="float32"):
    return Context(target.load("android-arm64"), calibration, folder, io=io)


def outputs(artifact, inputs):
    session, signature = litert.emulate(artifact), artifact.signature
    given = {spec.name: quantize(inputs[spec.name], spec) for spec in signature.inputs}
    found = session.run(given)
    return {spec.name: dequantize(found[spec.name], spec) for spec in signature.outputs}


def sqnr(reference, given):
    return 10 * np.log10((reference**2).sum() / max(((reference - given) ** 2).sum(), 1e-30))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("net")
    model = net(folder)
    build = litert.prepare(model, context(folder, samples(16)))
    return model, {precision: build(Candidate(precision)) for precision in litert.precisions}


@pytest.mark.parametrize(("precision", "least_db"), [("fp32", 100), ("fp16", 55), ("w8a16", 33), ("w8", 33), ("w8-dynamic", 30), ("w8a8", 28)])
def test_every_precision_runs_and_is_close_to_the_float_model(built, precision, least_db):
    model, artifacts = built
    session = Interpreter(model.path.read_bytes(), model.signature)
    held_out = samples(12, seed=99)
    reference = np.concatenate([session.run(s)["y"] for s in held_out])
    given = np.concatenate([outputs(artifacts[precision], s)["y"] for s in held_out])
    assert sqnr(reference, given) > least_db
    assert [spec.name for spec in artifacts[precision].signature.inputs] == ["x"]


def test_quantized_files_hold_their_constants_aligned_inside_the_flatbuffer(built):
    content = built[1]["w8a8"].path.read_bytes()
    raw = flatbuffer.schema().Model.GetRootAs(content, 0)
    for number in range(raw.BuffersLength()):
        buffer = raw.Buffers(number)
        assert buffer.Offset() == 0
        if not buffer.DataIsNone():
            start = np.frombuffer(content, np.uint8).ctypes.data
            assert (buffer.DataAsNumpy().ctypes.data - start) % 16 == 0


def test_the_same_input_gives_the_same_bytes(built, tmp_path):
    model, artifacts = built
    build = litert.prepare(model, context(tmp_path, samples(16)))
    for precision in ("fp16", "w8", "w8a8"):
        assert build(Candidate(precision)).path.read_bytes() == artifacts[precision].path.read_bytes()


def test_weights_lie_on_eight_bits_and_fp16_stores_halves(built):
    def stored(precision):
        parsed = flatbuffer.load(built[1][precision].path.read_bytes())
        pairs = [(flatbuffer.numpy_dtype(t.type), flatbuffer.constant(parsed, t)) for t in parsed.subgraphs[0].tensors]
        return {dtype for dtype, values in pairs if values is not None and values.size >= 256}

    assert stored("w8") == stored("w8-dynamic") == stored("w8a8") == {"int8"}
    assert stored("fp16") == {"float16"}


def test_an_int8_edge_is_stored_in_the_signature(tmp_path):
    artifact = litert.prepare(net(tmp_path), context(tmp_path, samples(8), io="int8"))(Candidate("w8a8"))
    for spec in (*artifact.signature.inputs, *artifact.signature.outputs):
        assert spec.dtype == "int8" and spec.scale is not None and spec.scale > 0
    assert outputs(artifact, samples(1)[0])["y"].shape == (1, 10)


def test_names_and_order_of_the_source_are_kept(tmp_path):
    random = np.random.default_rng(0)
    b = Builder(("b_in", (1, 6)), ("a_in", (1, 6)))
    one = b.dense(0, "t1", floats(random, 4, 6), floats(random, 4))
    two = b.dense(1, "t2", floats(random, 4, 6), floats(random, 4))
    model = b.write(tmp_path, two, one)
    renamed = type(model.signature)(
        tuple(type(s)(n, s.shape, s.dtype) for n, s in zip(("left", "right"), model.signature.inputs, strict=True)),
        tuple(type(s)(n, s.shape, s.dtype) for n, s in zip(("z", "a"), model.signature.outputs, strict=True)),
    )
    model = type(model)("tflite", "two", renamed, "0" * 64, path=model.path)
    calibration = [{"left": floats(random, 1, 6), "right": floats(random, 1, 6)} for _ in range(8)]
    build = litert.prepare(model, context(tmp_path, calibration))
    wanted = Interpreter(model.path.read_bytes(), renamed).run(calibration[0])
    for precision in litert.precisions:
        found = outputs(build(Candidate(precision)), calibration[0])
        assert list(found) == ["z", "a"]
        for name, values in wanted.items():
            assert sqnr(values, found[name]) > 15, precision


def test_a_channel_that_is_dead_keeps_its_bias(tmp_path):
    random = np.random.default_rng(0)
    weight = floats(random, 4, 3, 3, 3)
    weight[1], weight[2] = 0, 1e-9
    b = Builder(("x", (1, 8, 8, 3)))
    y = b.conv(0, "y", weight, np.array([0.5, 3.0, -2.0, 0.1], np.float32))
    build = litert.prepare(b.write(tmp_path, y), context(tmp_path, samples(8)))
    for precision in QUANTIZED:
        found = outputs(build(Candidate(precision)), samples(1)[0])["y"]
        assert np.abs(found[..., 1] - 3.0).max() < 0.15, precision
        assert np.abs(found[..., 2] + 2.0).max() < 0.15, precision


def detector(folder):
    random = np.random.default_rng(3)
    b = Builder(("x", (1, 8, 8, 3)))
    features = b.conv(0, "features", floats(random, 16, 3, 3, 3, scale=0.11), floats(random, 16, scale=0.1), relu=True)
    boxes = b.op("LOGISTIC", [b.conv(features, "b", floats(random, 4, 1, 1, 16, scale=0.14), floats(random, 4, scale=0.1))], "unit", (1, 8, 8, 4))
    pixels = b.op("MUL", [boxes, b.constant("640", np.array(640, np.float32))], "pixels", (1, 8, 8, 4), flatbuffer.schema().MulOptionsT())
    logits = b.conv(features, "s", floats(random, 2, 1, 1, 16, scale=0.4), floats(random, 2, scale=0.1) - 1)
    scores = b.op("LOGISTIC", [logits], "scores", (1, 8, 8, 2))
    options = flatbuffer.schema().ConcatenationOptionsT()
    options.axis = 3
    return b.write(folder, b.op("CONCATENATION", [pixels, scores], "pred", (1, 8, 8, 6), options))


@pytest.mark.parametrize(("precision", "io"), [("w8a8", "float32"), ("w8a8", "int8"), ("w8a16", "int8"), ("w8-dynamic", "float32")])
def test_boxes_and_scores_in_one_output_keep_their_resolution(tmp_path, precision, io):
    model = detector(tmp_path)
    artifact = litert.prepare(model, context(tmp_path, samples(16), io=io))(Candidate(precision))
    sample = samples(1, seed=50)[0]
    wanted, found = Interpreter(model.path.read_bytes(), model.signature).run(sample)["pred"], outputs(artifact, sample)["pred"]
    assert np.abs(found[..., 4:] - wanted[..., 4:]).max() <= 0.02
    assert np.abs(found[..., :4] - wanted[..., :4]).max() <= 6
    assert precision == "w8-dynamic" or any("joins unlike ranges (pixels reaches" in notice for notice in artifact.notices)


def test_a_join_that_a_layer_reads_is_left_alone(tmp_path):
    random = np.random.default_rng(3)
    b = Builder(("x", (1, 8, 8, 3)))
    wide, narrow = (b.conv(0, n, floats(random, 4, 1, 1, 3, scale=s), floats(random, 4)) for n, s in (("wide", 50), ("narrow", 0.5)))
    options = flatbuffer.schema().ConcatenationOptionsT()
    options.axis = 3
    both = b.op("CONCATENATION", [wide, narrow], "both", (1, 8, 8, 8), options)
    model = b.write(tmp_path, b.conv(both, "y", floats(random, 2, 1, 1, 8), floats(random, 2)))
    assert joins.unlike(source.open_source(model, context(tmp_path, samples(4)))) == ((), ())


def spread_depthwise(folder):
    random = np.random.default_rng(1)
    gains = np.logspace(-2, 1.5, 16).astype(np.float32)
    b = Builder(("x", (1, 8, 8, 16)))
    deep = b.depthwise(0, "deep", floats(random, 1, 3, 3, 16, scale=0.3) * gains, np.zeros(16, np.float32))
    return b.write(folder, b.conv(deep, "y", floats(random, 4, 1, 1, 16, scale=0.3) / gains, floats(random, 4)))


@pytest.mark.parametrize("precision", ["w8a8", "w8a16", "w8-dynamic"])
def test_channels_of_very_different_reach_are_equalized(tmp_path, precision):
    calibration = samples(16, (1, 8, 8, 16))
    model = spread_depthwise(tmp_path)
    artifact = litert.prepare(model, context(tmp_path, calibration))(Candidate(precision))
    sample = samples(1, (1, 8, 8, 16), seed=50)[0]
    wanted, found = Interpreter(model.path.read_bytes(), model.signature).run(sample)["y"], outputs(artifact, sample)["y"]
    assert float((wanted * found).sum() / np.sqrt((wanted**2).sum() * (found**2).sum())) >= 0.99
    assert any("equalized between the layers around deep" in notice for notice in artifact.notices)


def test_equalizing_a_residual_chain_leaves_the_float_function(tmp_path):
    random = np.random.default_rng(1)
    gains = np.logspace(-1, 1, 8).astype(np.float32)
    b = Builder(("x", (1, 8, 8, 3)))
    start = b.conv(0, "start", floats(random, 8, 3, 3, 3) * gains[:, None, None, None], floats(random, 8))
    grown = b.conv(start, "grown", floats(random, 12, 1, 1, 8), floats(random, 12), relu=True)
    back = b.conv(grown, "back", floats(random, 8, 1, 1, 12) * gains[:, None, None, None], floats(random, 8))
    total = b.op("ADD", [start, back], "total", (1, 8, 8, 8), flatbuffer.schema().AddOptionsT())
    model = b.write(tmp_path, b.conv(total, "y", floats(random, 4, 1, 1, 8), floats(random, 4)))
    opened = source.open_source(model, context(tmp_path, samples(4)))
    content, names = equalized(opened)
    assert names
    for sample in samples(3, seed=9):
        wanted, found = (Interpreter(c, model.signature).run(sample)["y"] for c in (opened.content, content))
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def transposed(b: Builder, x: int, name: str, weight, bias, *, stride: int, same: bool) -> int:
    """TRANSPOSE_CONV of [1, height, width, inputs] by `weight` [outputs, height, width, inputs]."""
    made, size = flatbuffer.schema(), [int(s) for s in b.graph.tensors[x].shape[1:3]]
    options = made.TransposeConvOptionsT()
    options.strideH = options.strideW = stride
    options.padding = made.Padding.SAME if same else made.Padding.VALID
    out = [s * stride + (0 if same else max(k - stride, 0)) for s, k in zip(size, weight.shape[1:3], strict=True)]
    shape = np.array([1, *out, weight.shape[0]], np.int32)
    inputs = [b.constant(f"{name}/shape", shape), b.constant(f"{name}/w", weight), x, b.constant(f"{name}/b", bias)]
    return b.op("TRANSPOSE_CONV", inputs, name, tuple(int(s) for s in shape), options, version=3)


def decoder(folder: Path):
    random = np.random.default_rng(3)
    b = Builder(("x", (1, 8, 8, 3)))
    one = transposed(b, 0, "one", floats(random, 6, 3, 3, 3, scale=0.3), floats(random, 6), stride=2, same=True)
    two = transposed(b, one, "two", floats(random, 4, 2, 2, 6, scale=0.3), floats(random, 4), stride=2, same=False)
    return b.write(folder, transposed(b, two, "y", floats(random, 5, 4, 4, 4, scale=0.3), floats(random, 5), stride=1, same=False))


def unrolled(folder: Path, steps: int = 4):
    """A recurrent layer unrolled: every step multiplies by the same weights."""
    random = np.random.default_rng(4)
    b = Builder(*[(f"x{i}", (1, 24)) for i in range(steps)])
    weight, bias = b.constant("w", floats(random, 24, 24, scale=0.25)), b.constant("b", floats(random, 24, scale=0.2))
    state = 0
    for step in range(steps):
        added = b.op("ADD", [state, step], f"sum{step}", (1, 24), flatbuffer.schema().AddOptionsT()) if step else 0
        dense = b.op("FULLY_CONNECTED", [added, weight, bias], f"dense{step}", (1, 24), flatbuffer.schema().FullyConnectedOptionsT())
        state = b.op("TANH", [dense], f"state{step}", (1, 24))
    return b.write(folder, state)


@pytest.mark.parametrize("make", [net, decoder])
def test_layer_columns_give_the_layer_s_own_output(tmp_path, make):
    model = make(tmp_path)
    parsed = flatbuffer.load(model.path.read_bytes())
    session = Interpreter(model.path.read_bytes(), model.signature, keep_all=True)
    session.run(samples(1)[0])
    found = layers.find(parsed)
    assert len(found) >= 3
    for layer in found:
        linear, values = layer.layer(parsed), session.tensor(layer.input)
        columns = layers.columns(layer, values, linear.weight.shape[1], 10_000, seed=0)
        made = np.matmul(columns, linear.grouped.transpose(0, 2, 1)).transpose(1, 0, 2).reshape(-1, linear.weight.shape[0]) + linear.bias
        wanted = session.tensor(layer.output).reshape(made.shape)
        np.testing.assert_allclose(np.maximum(made, 0) if wanted.min() >= 0 else made, wanted, atol=1e-4)


@pytest.mark.parametrize("precision", ["w8", "w8-dynamic"])
def test_transposed_convolutions_are_rounded_by_data(tmp_path, precision):
    model, fresh = decoder(tmp_path), samples(8, seed=5)
    build = litert.prepare(model, context(tmp_path, samples(32)))
    session = Interpreter(model.path.read_bytes(), model.signature)
    wanted = np.concatenate([session.run(s)["y"] for s in fresh])
    nearest, second = (
        sqnr(wanted, np.concatenate([outputs(build(Candidate(precision, rounding=r)), s)["y"] for s in fresh])) for r in ("nearest", "second-order")
    )
    assert second > nearest + 1


def test_tied_weights_are_rounded_once_and_stored_once(tmp_path):
    model, random = unrolled(tmp_path), np.random.default_rng(9)
    mix = floats(random, 4, 24)
    sets = [{f"x{i}": floats(random, 1, 4) @ mix + 0.1 * floats(random, 1, 24) for i in range(4)} for _ in range(40)]
    parsed = flatbuffer.load(model.path.read_bytes())
    assert [len(layer.ties) for layer in layers.find(parsed)] == [3]
    build = litert.prepare(model, context(tmp_path, sets[:32]))
    session = Interpreter(model.path.read_bytes(), model.signature)
    wanted = np.concatenate([session.run(s)["state3"] for s in sets[32:]])
    artifacts = [build(Candidate("w8", rounding=r)) for r in ("nearest", "second-order")]
    nearest, second = (sqnr(wanted, np.concatenate([outputs(a, s)["state3"] for s in sets[32:]])) for a in artifacts)
    assert second > nearest
    assert artifacts[1].path.stat().st_size == artifacts[0].path.stat().st_size < 24 * 24 * 2 + 6000


def test_ours_is_never_worse_than_the_stock_quantizer_on_its_samples(built, tmp_path):
    model = built[0]
    opened = source.open_source(model, context(tmp_path, samples(16)))
    for precision in QUANTIZED:
        ranges = source.averaged_ranges(opened) if precision in variants.STATIC_BITS else None
        plain = stock.quantize(opened.content, Candidate(precision), stock.Policy(), ranges)
        ours = variants.best(opened, Candidate(precision))
        assert ours.sqnr_db >= variants.sqnr_db(opened, plain, opened.judges[: variants.JUDGES.get(precision)]) - 1e-6


def test_rounding_by_data_beats_nearest_on_samples_it_never_saw(tmp_path):
    model, fresh = net(tmp_path), samples(20, seed=77)
    build = litert.prepare(model, context(tmp_path, samples(48)))
    session = Interpreter(model.path.read_bytes(), model.signature)
    reference = np.concatenate([session.run(s)["y"] for s in fresh])
    built = [build(Candidate("w8", rounding=method)) for method in ("nearest", "second-order")]
    reached = [sqnr(reference, np.concatenate([outputs(artifact, s)["y"] for s in fresh])) for artifact in built]
    assert reached[1] > reached[0] + 1


def test_without_samples_weights_are_rounded_to_nearest_and_static_precisions_refused(tmp_path):
    build = litert.prepare(net(tmp_path), context(tmp_path, []))
    assert any("no samples" in notice for notice in build(Candidate("w8")).notices)
    with pytest.raises(ConversionError, match="needs calibration data"):
        build(Candidate("w8a8"))


def test_one_sample_builds_and_says_so(tmp_path):
    artifact = litert.prepare(net(tmp_path), context(tmp_path, samples(1)))(Candidate("w8a8"))
    assert any("fewer than" in notice for notice in artifact.notices)


def test_a_model_too_small_to_gain_says_so(tmp_path):
    random = np.random.default_rng(0)
    b = Builder(("x", (1, 1)))
    one = b.dense(0, "one", floats(random, 16, 1), floats(random, 16), relu=True)
    two = b.dense(one, "two", floats(random, 16, 16), floats(random, 16), relu=True)
    model = b.write(tmp_path, b.dense(two, "y", floats(random, 1, 16), floats(random, 1)))
    calibration = [{"x": floats(random, 1, 1)} for _ in range(16)]
    artifact = litert.prepare(model, context(tmp_path, calibration))(Candidate("w8"))
    assert artifact.path.stat().st_size <= model.path.stat().st_size or any("no smaller than float" in notice for notice in artifact.notices)


def test_an_integer_model_passes_through_at_its_own_precision(built, tmp_path):
    artifact = built[1]["w8a8"]
    model = type(built[0])("tflite", "already", artifact.signature, "0" * 64, path=artifact.path)
    build = litert.prepare(model, context(tmp_path, samples(2)))
    assert litert.own_precision(model) == "w8a8"
    assert outputs(build(Candidate("w8a8")), samples(1)[0])["y"] == pytest.approx(outputs(artifact, samples(1)[0])["y"])
    with pytest.raises(ConversionError, match="already quantized"):
        build(Candidate("fp16"))


def test_sensitivity_names_operators_and_reasons(built):
    rows = built[1]["w8a8"].sensitivity
    assert len(rows) <= 10 and all(cost > 0 for _, cost, _ in rows)
    assert [cost for _, cost, _ in rows] == sorted((cost for _, cost, _ in rows), reverse=True)
    assert rows and all("output spans" in reason for _, _, reason in rows)


def test_keep_float_leaves_an_operator_in_float(built, tmp_path):
    artifact = litert.prepare(built[0], context(tmp_path, samples(8)))(Candidate("w8a8", keep_float=("three",)))
    parsed = flatbuffer.load(artifact.path.read_bytes())
    tensors = {flatbuffer.text(t.name): flatbuffer.numpy_dtype(t.type) for t in parsed.subgraphs[0].tensors}
    assert tensors["three/w"] == "float32" and tensors["two/w"] == "int8"


def test_a_bias_that_layers_share_is_corrected_for_each(tmp_path):
    random = np.random.default_rng(0)
    b = Builder(("x", (1, 8, 8, 3)))
    one = b.conv(0, "one", floats(random, 8, 3, 3, 3), np.zeros(8, np.float32), relu=True)
    two = b.conv(one, "two", floats(random, 8, 3, 3, 8), np.zeros(8, np.float32), relu=True)
    b.graph.operators[1].inputs[2] = b.graph.operators[0].inputs[2]
    model, fresh = b.write(tmp_path, two), samples(8, seed=5)
    build = litert.prepare(model, context(tmp_path, samples(24)))
    session = Interpreter(model.path.read_bytes(), model.signature)
    wanted = np.concatenate([session.run(s)["two"] for s in fresh])
    reached = [
        sqnr(wanted, np.concatenate([outputs(build(Candidate("w8-dynamic", rounding=r)), s)["two"] for s in fresh])) for r in ("nearest", "bias")
    ]
    assert reached[1] > reached[0] - 0.5


def test_equal_constants_are_stored_once(tmp_path):
    random = np.random.default_rng(0)
    shared = floats(random, 64, 64)
    b = Builder(("x", (1, 64)))
    one = b.dense(0, "one", shared, floats(random, 64), relu=True)
    model = b.write(tmp_path, b.dense(one, "y", shared.copy(), floats(random, 64)))
    calibration = [{"x": floats(random, 1, 64)} for _ in range(8)]
    artifact = litert.prepare(model, context(tmp_path, calibration))(Candidate("w8", rounding="nearest"))
    assert artifact.path.stat().st_size < 2 * 64 * 64


def test_halves_that_would_overflow_stay_float32(tmp_path):
    weight = np.full((16, 16), 1e5, np.float32)
    b = Builder(("x", (1, 16)))
    artifact = litert.prepare(b.write(tmp_path, b.dense(0, "y", weight, np.zeros(16, np.float32))), context(tmp_path, []))(Candidate("fp16"))
    assert any("exceeds float16" in notice for notice in artifact.notices)
    assert np.isfinite(outputs(artifact, {"x": np.ones((1, 16), np.float32)})["y"]).all()


def test_not_a_number_in_the_float_model_is_refused(tmp_path):
    b = Builder(("x", (1, 4)))
    model = b.write(tmp_path, b.dense(0, "y", np.full((2, 4), np.inf, np.float32), np.zeros(2, np.float32)))
    build = litert.prepare(model, context(tmp_path, [{"x": np.array([[1, -1, 1, -1]], np.float32)}]))
    with pytest.raises(ConversionError, match="NaN"):
        build(Candidate("w8a8"))


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"\x1c\x00\x00\x00TFL3" + b"\xff" * 40])
def test_a_damaged_file_is_refused(tmp_path, content):
    with pytest.raises(ConversionError):
        flatbuffer.load(content, "broken")


@pytest.mark.parametrize("precision", QUANTIZED)
def test_whatever_the_stock_quantizer_raises_names_the_precision(precision):
    with pytest.raises(ConversionError, match=f"^{precision}: the quantizer refuses the model"):
        stock.quantize(b"no flatbuffer at all" * 8, Candidate(precision), stock.Policy())


def test_a_relu_that_stands_alone_costs_no_bits(tmp_path):
    random = np.random.default_rng(0)
    weight, bias = floats(random, 8, 3, 3, 3), floats(random, 8) - 4
    reached = []
    for alone in (False, True):
        b = Builder(("x", (1, 8, 8, 3)))
        one = b.conv(0, "one", weight, bias, relu=not alone)
        two = b.op("RELU", [one], "two", (1, 8, 8, 8)) if alone else one
        (folder := tmp_path / str(alone)).mkdir()
        model = b.write(folder, b.conv(two, "y", weight[:4].repeat(3, 3)[..., :8], bias[:4]))
        fresh = samples(8, seed=5)
        session = Interpreter(model.path.read_bytes(), model.signature)
        wanted = np.concatenate([session.run(s)["y"] for s in fresh])
        artifact = litert.prepare(model, context(folder, samples(16)))(Candidate("w8a8"))
        reached.append(sqnr(wanted, np.concatenate([outputs(artifact, s)["y"] for s in fresh])))
    assert reached[1] == pytest.approx(reached[0], abs=0.01)


def uneven(folder):
    """A small first layer of weights that eight bits fit badly, before large ones."""
    random = np.random.default_rng(6)
    b = Builder(("x", (1, 32)))
    one = b.dense(0, "one", (random.standard_normal((48, 32)) ** 5).astype(np.float32), floats(random, 48), relu=True)
    two = b.dense(one, "two", floats(random, 400, 48, scale=0.1), floats(random, 400), relu=True)
    return b.write(folder, b.dense(two, "y", floats(random, 100, 400, scale=0.1), floats(random, 100)), name="uneven")


@pytest.mark.slow  # two times all precisions
def test_room_below_the_ceiling_buys_the_operators_that_pay_best(tmp_path):
    model, random = uneven(tmp_path), np.random.default_rng(7)
    np.savez(tmp_path / "data.npz", x=floats(random, 48, 1, 32))
    (tight := tmp_path / "tight").mkdir(), (roomy := tmp_path / "roomy").mkdir()

    def plan(folder, ceiling):
        limits = budget.Limits(max_model_bytes=ceiling)
        options = packager.Options(calibration=str(tmp_path / "data.npz"), limits=limits, out=folder, rebuild=True)
        return packager.package(str(model.path), "android-arm64", options).manifest.plan

    smallest = litert.prepare(model, context(tmp_path, [{"x": floats(random, 1, 32)}]))(Candidate("w8")).path.stat().st_size
    plain = plan(tight, smallest + 1000)
    bought = plan(roomy, plain.choice.model_bytes + 48 * 32 * 3 + 200)
    assert plain.choice.candidate.keep_float == ()
    assert bought.choice.candidate.keep_float == ("one",)
    assert bought.choice.sqnr_db > plain.choice.sqnr_db + 0.5
    assert plain.choice.model_bytes < bought.choice.model_bytes <= plain.choice.model_bytes + 48 * 32 * 3 + 200
