"""Rounding by data: what a layer's columns are, and which weights are rounded by them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit import budget, packager
from edgekit.backends import Candidate, litert
from edgekit.backends.litert import layers
from edgekit.backends.litert.running import Interpreter
from edgekit.errors import ConversionError
from edgekit.formats import tflite_flatbuffer as flatbuffer

pytest.importorskip("ai_edge_quantizer")
from tests.decibels import sqnr_db
from tests.litert_models import Builder, context, floats, image_like, outputs, small_net

QUANTIZED = ("w8", "w8-dynamic", "w8a8", "w8a16")


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


@pytest.mark.parametrize("make", [small_net, decoder])
def test_layer_columns_give_the_layer_s_own_output(tmp_path, make):
    model = make(tmp_path)
    parsed = flatbuffer.load(model.path.read_bytes())
    session = Interpreter(model.path.read_bytes(), model.signature, keep_all=True)
    session.run(image_like(1)[0])
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
    model, fresh = decoder(tmp_path), image_like(8, seed=5)
    build = litert.prepare(model, context(tmp_path, image_like(32)))
    session = Interpreter(model.path.read_bytes(), model.signature)
    wanted = np.concatenate([session.run(s)["y"] for s in fresh])
    nearest, second = (
        sqnr_db(wanted, np.concatenate([outputs(build(Candidate(precision, rounding=r)), s)["y"] for s in fresh]))
        for r in ("nearest", "second-order")
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
    nearest, second = (sqnr_db(wanted, np.concatenate([outputs(a, s)["state3"] for s in sets[32:]])) for a in artifacts)
    assert second > nearest
    assert artifacts[1].path.stat().st_size == artifacts[0].path.stat().st_size < 24 * 24 * 2 + 6000


def test_rounding_by_data_beats_nearest_on_samples_it_never_saw(tmp_path):
    model, fresh = small_net(tmp_path), image_like(20, seed=77)
    build = litert.prepare(model, context(tmp_path, image_like(48)))
    session = Interpreter(model.path.read_bytes(), model.signature)
    reference = np.concatenate([session.run(s)["y"] for s in fresh])
    built = [build(Candidate("w8", rounding=method)) for method in ("nearest", "second-order")]
    reached = [sqnr_db(reference, np.concatenate([outputs(artifact, s)["y"] for s in fresh])) for artifact in built]
    assert reached[1] > reached[0] + 1


def test_without_samples_weights_are_rounded_to_nearest_and_static_precisions_refused(tmp_path):
    build = litert.prepare(small_net(tmp_path), context(tmp_path, []))
    assert any("no samples" in notice for notice in build(Candidate("w8")).notices)
    with pytest.raises(ConversionError, match="needs calibration data"):
        build(Candidate("w8a8"))


def test_a_bias_that_layers_share_is_corrected_for_each(tmp_path):
    random = np.random.default_rng(0)
    b = Builder(("x", (1, 8, 8, 3)))
    one = b.conv(0, "one", floats(random, 8, 3, 3, 3), np.zeros(8, np.float32), relu=True)
    two = b.conv(one, "two", floats(random, 8, 3, 3, 8), np.zeros(8, np.float32), relu=True)
    b.graph.operators[1].inputs[2] = b.graph.operators[0].inputs[2]
    model, fresh = b.write(tmp_path, two), image_like(8, seed=5)
    build = litert.prepare(model, context(tmp_path, image_like(24)))
    session = Interpreter(model.path.read_bytes(), model.signature)
    wanted = np.concatenate([session.run(s)["two"] for s in fresh])
    reached = [
        sqnr_db(wanted, np.concatenate([outputs(build(Candidate("w8-dynamic", rounding=r)), s)["two"] for s in fresh])) for r in ("nearest", "bias")
    ]
    assert reached[1] > reached[0] - 0.5


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
