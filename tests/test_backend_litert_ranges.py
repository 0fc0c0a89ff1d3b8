"""Ranges that differ widely: joins of unlike outputs, channels of unlike reach, dead channels, and what is made of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edgekit.backends import Candidate, litert
from edgekit.backends.litert import joins, simulate, source
from edgekit.backends.litert import outputs as ends_of
from edgekit.backends.litert.equalized import equalized
from edgekit.backends.litert.running import Interpreter
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize import ranges

pytest.importorskip("ai_edge_quantizer")
from tests.decibels import sqnr_db
from tests.litert_models import Builder, context, floats, image_like, outputs

QUANTIZED = ("w8", "w8-dynamic", "w8a8", "w8a16")


def test_a_channel_that_is_dead_keeps_its_bias(tmp_path):
    random = np.random.default_rng(0)
    weight = floats(random, 4, 3, 3, 3)
    weight[1], weight[2] = 0, 1e-9
    b = Builder(("x", (1, 8, 8, 3)))
    y = b.conv(0, "y", weight, np.array([0.5, 3.0, -2.0, 0.1], np.float32))
    build = litert.prepare(b.write(tmp_path, y), context(tmp_path, image_like(8)))
    for precision in QUANTIZED:
        found = outputs(build(Candidate(precision)), image_like(1)[0])["y"]
        assert np.abs(found[..., 1] - 3.0).max() < 0.15, precision
        assert np.abs(found[..., 2] + 2.0).max() < 0.15, precision


def test_ranges_are_those_of_the_method_asked_for(tmp_path):
    """Beside 40 samples of like reach one reaches a hundred times as far, which the methods weigh otherwise."""
    random = np.random.default_rng(0)
    b = Builder(("x", (1, 8, 8, 3)))
    first = b.conv(0, "a", floats(random, 8, 1, 1, 3), floats(random, 8))
    model = b.write(tmp_path, b.conv(first, "y", floats(random, 4, 1, 1, 8), floats(random, 4)))
    data = [*image_like(40), {"x": image_like(1, seed=9)[0]["x"] * 100}]
    steps = {}
    for method in ("minmax", "percentile", "mse", "entropy"):
        (tmp_path / method).mkdir()
        asked = dataclasses.replace(context(tmp_path / method, data), ranges=method)
        artifact = litert.prepare(model, asked)(Candidate("w8a8", rounding="nearest"))
        steps[method] = simulate.grids(artifact.path.read_bytes())["a"].scale
        opened = source.open_source(model, asked)
        low, high = ranges.choose(opened.histograms["a"], method)
        assert steps[method] == pytest.approx((high - low) / 255, rel=0.05), method  # the extremes have some room beyond
    assert steps["minmax"] > steps["mse"] > 1.2 * steps["entropy"]


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
    artifact = litert.prepare(model, context(tmp_path, image_like(16), io=io))(Candidate(precision))
    sample = image_like(1, seed=50)[0]
    wanted, found = Interpreter(model.path.read_bytes(), model.signature).run(sample)["pred"], outputs(artifact, sample)["pred"]
    assert np.abs(found[..., 4:] - wanted[..., 4:]).max() <= 0.02
    assert np.abs(found[..., :4] - wanted[..., :4]).max() <= 6
    assert precision == "w8-dynamic" or any("joins unlike ranges (pixels reaches" in notice for notice in artifact.notices)


def test_nothing_stays_float_for_precision_where_everything_is_integer(tmp_path):
    model = detector(tmp_path)
    integer = dataclasses.replace(context(tmp_path, image_like(16), io="int8"), integer=True)
    artifact = litert.prepare(model, integer)(Candidate("w8a8"))
    parsed = flatbuffer.load(artifact.path.read_bytes())
    float32 = flatbuffer.schema().TensorType.FLOAT32
    assert not [op for op in parsed.subgraphs[0].operators for i in op.outputs if parsed.subgraphs[0].tensors[i].type == float32]
    (said,) = (notice for notice in artifact.notices if "joins unlike ranges" in notice)
    assert "give it an output of its own" in said and "float" not in said


def ends(folder, kind):
    """A detector whose one output [1, 8, 8, 6] holds four boxes in pixels and two scores, brought together without a join of unlike ranges."""
    random, made = np.random.default_rng(3), flatbuffer.schema()
    b, pixels = Builder(("x", (1, 8, 8, 3))), np.array([640, 640, 640, 640, 1, 1], np.float32)
    features = b.conv(0, "features", floats(random, 64, 3, 3, 3, scale=0.11), floats(random, 64, scale=0.1), relu=True)
    features = b.conv(features, "more", floats(random, 16, 3, 3, 64, scale=0.05), floats(random, 16, scale=0.1), relu=True)
    heads = b.conv(features, "heads", floats(random, 6, 1, 1, 16, scale=0.3), floats(random, 6, scale=0.1))
    unit = b.op("LOGISTIC", [heads], "unit", (1, 8, 8, 6))
    if kind == "factor":
        return b.write(folder, b.op("MUL", [unit, b.constant("factors", pixels)], "pred", (1, 8, 8, 6), made.MulOptionsT()))
    if kind == "layer":
        weights = floats(random, 6, 1, 1, 16, scale=0.3) * pixels[:, None, None, None]
        return b.write(folder, b.conv(features, "pred", weights, floats(random, 6, scale=0.1) * pixels))
    padded = []
    for name, count, before in (("boxes", 4, 0), ("scores", 2, 4)):
        raw = b.conv(features, f"{name}_raw", floats(random, count, 1, 1, 16, scale=0.3), floats(random, count))
        part = b.op("LOGISTIC", [raw], name, (1, 8, 8, count))
        if not before:
            part = b.op("MUL", [part, b.constant("640", np.array(640, np.float32))], "pixels", (1, 8, 8, count), made.MulOptionsT())
        pads = np.array([[0, 0], [0, 0], [0, 0], [before, 6 - count - before]], np.int32)
        padded.append(b.op("PAD", [part, b.constant(f"{name}_pads", pads)], f"{name}_padded", (1, 8, 8, 6), made.PadOptionsT()))
    return b.write(folder, b.op("ADD", padded, "pred", (1, 8, 8, 6), made.AddOptionsT()))


@pytest.mark.parametrize("kind", ["factor", "layer", "sum"])
def test_scores_keep_their_resolution_however_they_came_beside_boxes(tmp_path, kind):
    model = ends(tmp_path, kind)
    artifact = litert.prepare(model, context(tmp_path, image_like(16)))(Candidate("w8a8"))
    sample = image_like(1, seed=50)[0]
    wanted, found = Interpreter(model.path.read_bytes(), model.signature).run(sample)["pred"], outputs(artifact, sample)["pred"]
    assert np.abs(found[..., 4:] - wanted[..., 4:]).max() <= 0.04
    assert np.abs(found[..., :4] - wanted[..., :4]).max() <= 25
    assert any("the widest channel reaches" in notice and "float for pred" in notice for notice in artifact.notices)


def test_an_output_of_like_channels_stays_in_integers(tmp_path):
    random = np.random.default_rng(3)
    b = Builder(("x", (1, 8, 8, 3)))
    model = b.write(tmp_path, b.conv(0, "y", floats(random, 8, 3, 3, 3), floats(random, 8)))
    opened = source.open_source(model, context(tmp_path, image_like(16)))
    assert ends_of.unlike(opened) == ((), ())
    assert ends_of.parts(opened, "y") == [...]


def test_a_join_that_a_layer_reads_is_left_alone(tmp_path):
    random = np.random.default_rng(3)
    b = Builder(("x", (1, 8, 8, 3)))
    wide, narrow = (b.conv(0, n, floats(random, 4, 1, 1, 3, scale=s), floats(random, 4)) for n, s in (("wide", 50), ("narrow", 0.5)))
    options = flatbuffer.schema().ConcatenationOptionsT()
    options.axis = 3
    both = b.op("CONCATENATION", [wide, narrow], "both", (1, 8, 8, 8), options)
    model = b.write(tmp_path, b.conv(both, "y", floats(random, 2, 1, 1, 8), floats(random, 2)))
    assert joins.unlike(source.open_source(model, context(tmp_path, image_like(4)))) == ((), ())


def spread_depthwise(folder):
    random = np.random.default_rng(1)
    gains = np.logspace(-2, 1.5, 16).astype(np.float32)
    b = Builder(("x", (1, 8, 8, 16)))
    deep = b.depthwise(0, "deep", floats(random, 1, 3, 3, 16, scale=0.3) * gains, np.zeros(16, np.float32))
    return b.write(folder, b.conv(deep, "y", floats(random, 4, 1, 1, 16, scale=0.3) / gains, floats(random, 4)))


@pytest.mark.parametrize("precision", ["w8a8", "w8a16", "w8-dynamic"])
def test_channels_of_very_different_reach_are_equalized(tmp_path, precision):
    calibration = image_like(16, (1, 8, 8, 16))
    model = spread_depthwise(tmp_path)
    artifact = litert.prepare(model, context(tmp_path, calibration))(Candidate(precision))
    sample = image_like(1, (1, 8, 8, 16), seed=50)[0]
    wanted, found = Interpreter(model.path.read_bytes(), model.signature).run(sample)["y"], outputs(artifact, sample)["y"]
    assert float((wanted * found).sum() / np.sqrt((wanted**2).sum() * (found**2).sum())) >= 0.99
    assert any("equalized between the layers around deep" in notice for notice in artifact.notices)


def test_rounding_to_nearest_leaves_the_weights_as_they_are(tmp_path):
    artifact = litert.prepare(spread_depthwise(tmp_path), context(tmp_path, image_like(16, (1, 8, 8, 16))))(Candidate("w8a8", rounding="nearest"))
    assert not any("equalized" in notice for notice in artifact.notices)


def test_equalizing_a_residual_chain_leaves_the_float_function(tmp_path):
    random = np.random.default_rng(1)
    gains = np.logspace(-1, 1, 8).astype(np.float32)
    b = Builder(("x", (1, 8, 8, 3)))
    start = b.conv(0, "start", floats(random, 8, 3, 3, 3) * gains[:, None, None, None], floats(random, 8))
    grown = b.conv(start, "grown", floats(random, 12, 1, 1, 8), floats(random, 12), relu=True)
    back = b.conv(grown, "back", floats(random, 8, 1, 1, 12) * gains[:, None, None, None], floats(random, 8))
    total = b.op("ADD", [start, back], "total", (1, 8, 8, 8), flatbuffer.schema().AddOptionsT())
    model = b.write(tmp_path, b.conv(total, "y", floats(random, 4, 1, 1, 8), floats(random, 4)))
    opened = source.open_source(model, context(tmp_path, image_like(4)))
    content, names = equalized(opened)
    assert names
    for sample in image_like(3, seed=9):
        wanted, found = (Interpreter(c, model.signature).run(sample)["y"] for c in (opened.content, content))
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_halves_that_would_overflow_stay_float32(tmp_path):
    weight = np.full((16, 16), 1e5, np.float32)
    b = Builder(("x", (1, 16)))
    artifact = litert.prepare(b.write(tmp_path, b.dense(0, "y", weight, np.zeros(16, np.float32))), context(tmp_path, []))(Candidate("fp16"))
    assert any("exceeds float16" in notice for notice in artifact.notices)
    assert np.isfinite(outputs(artifact, {"x": np.ones((1, 16), np.float32)})["y"]).all()


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
        fresh = image_like(8, seed=5)
        session = Interpreter(model.path.read_bytes(), model.signature)
        wanted = np.concatenate([session.run(s)["y"] for s in fresh])
        artifact = litert.prepare(model, context(folder, image_like(16)))(Candidate("w8a8"))
        reached.append(sqnr_db(wanted, np.concatenate([outputs(artifact, s)["y"] for s in fresh])))
    assert reached[1] == pytest.approx(reached[0], abs=0.01)
