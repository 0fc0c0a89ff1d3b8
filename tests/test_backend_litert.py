from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit import formats
from edgekit.backends import Candidate, litert
from edgekit.backends.litert import source, stock, variants
from edgekit.backends.litert.running import Interpreter
from edgekit.errors import ConversionError
from edgekit.formats import tflite_flatbuffer as flatbuffer

pytest.importorskip("ai_edge_quantizer")
from tests.decibels import sqnr_db
from tests.litert_models import Builder, context, floats, image_like, outputs, small_net
from tests.tflite_build import Net

QUANTIZED = ("w8", "w8-dynamic", "w8a8", "w8a16")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("net")
    model = small_net(folder)
    build = litert.prepare(model, context(folder, image_like(16)))
    return model, {precision: build(Candidate(precision)) for precision in litert.precisions}


@pytest.mark.parametrize(("precision", "least_db"), [("fp32", 100), ("fp16", 55), ("w8a16", 33), ("w8", 33), ("w8-dynamic", 30), ("w8a8", 28)])
def test_every_precision_runs_and_is_close_to_the_float_model(built, precision, least_db):
    """A grid of b bits over ±4 standard deviations leaves 6.02 b - 7.3 dB: 41 dB of 8 bits, a significand of 11 bits about 70 dB.

    Four layers of rounded weights take 6 dB of that, rounded activations beside them 3 more (6 where they follow each sample); 2 to 4 dB are left
    for weights that fill their grid less well, and in half precision for rounded sums.
    """
    model, artifacts = built
    session = Interpreter(model.path.read_bytes(), model.signature)
    held_out = image_like(12, seed=99)
    reference = np.concatenate([session.run(s)["y"] for s in held_out])
    given = np.concatenate([outputs(artifacts[precision], s)["y"] for s in held_out])
    assert sqnr_db(reference, given) > least_db
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
    build = litert.prepare(model, context(tmp_path, image_like(16)))
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
    artifact = litert.prepare(small_net(tmp_path), context(tmp_path, image_like(8), io="int8"))(Candidate("w8a8"))
    for spec in (*artifact.signature.inputs, *artifact.signature.outputs):
        assert spec.dtype == "int8" and spec.scale is not None and spec.scale > 0
    assert outputs(artifact, image_like(1)[0])["y"].shape == (1, 10)


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
            assert sqnr_db(values, found[name]) > 15, precision


def test_ours_is_never_worse_than_the_stock_quantizer_on_its_samples(built, tmp_path):
    model = built[0]
    opened = source.open_source(model, context(tmp_path, image_like(16)))
    for precision in QUANTIZED:
        ranges = source.averaged_ranges(opened) if precision in variants.STATIC_BITS else None
        plain = stock.quantize(opened.content, Candidate(precision), stock.Policy(), ranges)
        ours = variants.best(opened, Candidate(precision))
        assert ours.sqnr_db >= variants.sqnr_db(opened, plain, opened.judges[: variants.JUDGES.get(precision)]) - 1e-6


def test_one_sample_builds_and_says_so(tmp_path):
    artifact = litert.prepare(small_net(tmp_path), context(tmp_path, image_like(1)))(Candidate("w8a8"))
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
    build = litert.prepare(model, context(tmp_path, image_like(2)))
    assert litert.own_precision(model) == "w8a8"
    assert outputs(build(Candidate("w8a8")), image_like(1)[0])["y"] == pytest.approx(outputs(artifact, image_like(1)[0])["y"])
    with pytest.raises(ConversionError, match="already quantized"):
        build(Candidate("fp16"))


def test_sensitivity_names_operators_and_reasons(built):
    rows = built[1]["w8a8"].sensitivity
    assert len(rows) <= 10 and all(cost > 0 for _, cost, _ in rows)
    assert [cost for _, cost, _ in rows] == sorted((cost for _, cost, _ in rows), reverse=True)
    assert rows and all("output spans" in reason for _, _, reason in rows)


def test_keep_float_leaves_an_operator_in_float(built, tmp_path):
    artifact = litert.prepare(built[0], context(tmp_path, image_like(8)))(Candidate("w8a8", keep_float=("three",)))
    parsed = flatbuffer.load(artifact.path.read_bytes())
    tensors = {flatbuffer.text(t.name): flatbuffer.numpy_dtype(t.type) for t in parsed.subgraphs[0].tensors}
    assert tensors["three/w"] == "float32" and tensors["two/w"] == "int8"


def test_equal_constants_are_stored_once(tmp_path):
    random = np.random.default_rng(0)
    shared = floats(random, 64, 64)
    b = Builder(("x", (1, 64)))
    one = b.dense(0, "one", shared, floats(random, 64), relu=True)
    model = b.write(tmp_path, b.dense(one, "y", shared.copy(), floats(random, 64)))
    calibration = [{"x": floats(random, 1, 64)} for _ in range(8)]
    artifact = litert.prepare(model, context(tmp_path, calibration))(Candidate("w8", rounding="nearest"))
    assert artifact.path.stat().st_size < 2 * 64 * 64


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


@pytest.mark.parametrize(("spread", "exact"), [(1 / 64, True), (1 / 3, False)])
def test_whether_half_precision_holds_the_weights_is_seen_in_their_values(tmp_path: Path, spread: float, exact: bool) -> None:
    net = Net()
    x, y = net.tensor("x", (1, 16)), net.tensor("y", (1, 8))
    weights = net.constant("w", (np.arange(128, dtype=np.float32).reshape(8, 16) - 64) * np.float32(spread))
    bias = net.constant("b", np.full(8, 1 / 3, np.float32))
    net.add("FULLY_CONNECTED", [x, weights, bias], [y], table="FullyConnectedOptions")
    model = formats.open(str(net.write(tmp_path / "net.tflite", [x], [y])))
    assert litert.exact_in_half(model) == exact
