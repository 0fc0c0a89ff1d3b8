"""What the LiteRT backend changes or leaves in a graph before and while it quantizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit.backends import Candidate, litert
from edgekit.backends.litert import bounds, fuse, layers, running, signatures, simulate, source, stock, stream, variants
from edgekit.backends.litert.running import Interpreter
from edgekit.formats import tflite
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize import grid
from edgekit.tensors import dequantize, quantize

pytest.importorskip("ai_edge_quantizer")
from tests.litert_models import Builder, context, floats
from tests.tflite_build import Net


def samples(count: int, *shape: int, seed: int = 1):
    random = np.random.default_rng(seed)
    return [{"x": floats(random, *shape)} for _ in range(count)]


def pooled(folder: Path, *, whole: bool):
    """A convolution that reaches far, its average, and a dense layer."""
    made, random = flatbuffer.schema(), np.random.default_rng(0)
    b = Builder(("x", (1, 8, 8, 3)))
    wide = b.conv(0, "wide", floats(random, 16, 3, 3, 3, scale=3), floats(random, 16))
    options, size = made.Pool2DOptionsT(), 8 if whole else 4
    options.filterHeight = options.filterWidth = options.strideH = options.strideW = size
    options.padding = made.Padding.VALID
    mean = b.op("AVERAGE_POOL_2D", [wide], "mean", (1, 8 // size, 8 // size, 16), options)
    return b.write(folder, b.conv(mean, "y", floats(random, 4, 1, 1, 16), floats(random, 4)))


def kinds(content: bytes) -> list[str]:
    model = flatbuffer.load(content)
    return [flatbuffer.op_name(model, op) for op in model.subgraphs[0].operators]


@pytest.mark.parametrize("whole", [True, False])
def test_a_pool_over_the_whole_image_becomes_a_mean_of_the_same_values(tmp_path, whole):
    model, given = pooled(tmp_path, whole=whole), samples(1, 1, 8, 8, 3)[0]
    before = model.path.read_bytes()
    parsed = flatbuffer.load(before)
    assert fuse.means_for_pools(parsed) == whole
    after = flatbuffer.dump(parsed)
    assert ("MEAN" in kinds(after)) == whole
    np.testing.assert_allclose(*(Interpreter(c, model.signature).run(given)["y"] for c in (before, after)), atol=1e-5)


def test_a_mean_has_a_finer_step_than_the_image_it_is_taken_of(tmp_path):
    artifact = litert.prepare(pooled(tmp_path, whole=True), context(tmp_path, samples(16, 1, 8, 8, 3)))(Candidate("w8a8"))
    grids = simulate.grids(artifact.path.read_bytes())
    assert grids["mean"].scale < grids["wide"].scale / 3


def test_ends_that_no_reader_tells_apart(tmp_path):
    random = np.random.default_rng(1)
    b = Builder(("x", (1, 8)))
    outer = b.dense(0, "outer", floats(random, 8, 8, scale=20), floats(random, 8))
    swish, gate = b.op("HARD_SWISH", [outer], "swish", (1, 8)), b.op("LOGISTIC", [outer], "gate", (1, 8))
    inner = b.dense(swish, "inner", floats(random, 8, 8, scale=20), floats(random, 8))
    model = b.write(tmp_path, b.op("LOGISTIC", [inner], "y", (1, 8)), gate)
    parsed = flatbuffer.load(model.path.read_bytes())
    assert bounds.of_readers(parsed) == {"outer": (-8.0, float("inf")), "inner": (-8.0, 8.0)}
    opened = source.open_source(model, context(tmp_path, samples(16, 1, 8)))
    assert opened.extremes["inner"].min() < -8
    assert (opened.histograms["inner"].low, opened.histograms["inner"].high) == (-8.0, 8.0)


@pytest.mark.parametrize(("kind", "read"), sorted(bounds.READS.items()))
def test_beyond_its_ends_an_operator_gives_the_same(tmp_path, kind, read):
    b = Builder(("x", (1, 6)))
    model = b.write(tmp_path, b.op(kind, [0], "y", (1, 6)))
    low, high = max(read[0], -50), min(read[1], 50)
    given = np.array([[low, low - 1, low - 40, high, high + 1, high + 40]], np.float32)
    made = Interpreter(model.path.read_bytes(), model.signature).run({"x": given})["y"][0]
    tenth = {"LOGISTIC": 0.1 / 256, "TANH": 0.1 / 128}.get(kind, 0.0)
    assert np.ptp(made[:3]) <= tenth
    assert read[1] > 50 or np.ptp(made[3:]) <= tenth


def normalized(folder: Path):
    """x by its own sum: the divisor comes close to zero."""
    made, random = flatbuffer.schema(), np.random.default_rng(2)
    b = Builder(("x", (1, 8)))
    dense = b.dense(0, "dense", floats(random, 8, 8), floats(random, 8))
    options = made.ReducerOptionsT()
    options.keepDims = True
    total = b.op("SUM", [dense, b.constant("axes", np.array([1], np.int32))], "total", (1, 1), options)
    share = b.op("DIV", [dense, total], "share", (1, 8), made.DivOptionsT())
    return b.write(folder, b.dense(share, "y", floats(random, 8, 8), floats(random, 8)))


def test_a_divisor_that_rounds_to_zero_does_not_stop_the_model(tmp_path):
    data = samples(24, 1, 8)
    artifact = litert.prepare(normalized(tmp_path), context(tmp_path, data))(Candidate("w8a8"))
    assert any("share: division stays float" in notice for notice in artifact.notices)
    assert "in float, for want of an integer kernel or by choice: 1 DIV" in artifact.notices
    session = litert.emulate(artifact)
    assert all(np.isfinite(session.run(sample)["y"]).all() for sample in [*data, {"x": np.zeros((1, 8), np.float32)}])


def test_a_constant_that_nothing_reads_does_not_stop_the_quantizer(tmp_path):
    random = np.random.default_rng(3)
    b = Builder(("x", (1, 16)))
    one = b.dense(0, "one", floats(random, 16, 16), floats(random, 16))
    two = b.dense(one, "y", floats(random, 16, 16), floats(random, 16))
    left = b.tensor("left", (16,), floats(random, 16))
    b.graph.tensors[left].buffer = b.graph.tensors[b.graph.operators[0].inputs[2]].buffer
    model = b.write(tmp_path, two)
    assert layers.forget_unread(flatbuffer.load(model.path.read_bytes()))
    for precision in ("w8", "w8a8"):
        assert litert.prepare(model, context(tmp_path, samples(8, 1, 16)))(Candidate(precision)).path.exists()


def twins(folder: Path, *, alike: bool):
    """Two convolutions of one weight, and of one bias or of two."""
    random = np.random.default_rng(4)
    b = Builder(("x", (1, 8, 8, 3)))
    weight = floats(random, 3, 3, 3, 3, scale=0.4)
    one = b.conv(0, "one", weight, floats(random, 3), relu=True)
    two = b.conv(one, "y", weight, floats(random, 3), relu=True)
    first, second = b.graph.operators
    second.inputs[1] = first.inputs[1]
    second.inputs[2] = first.inputs[2] if alike else second.inputs[2]
    return b.write(folder, two)


@pytest.mark.parametrize("alike", [True, False])
def test_tied_convolutions_are_one_layer_where_their_biases_are_one(tmp_path, alike):
    parsed = flatbuffer.load(twins(tmp_path, alike=alike).path.read_bytes())
    layers.separate_biases(parsed)
    assert [layer.ties for layer in layers.find(parsed)] == ([(1,)] if alike else [])


def test_rounding_by_data_gives_way_to_nearest_where_that_is_better(tmp_path, monkeypatch):
    opened = source.open_source(pooled(tmp_path, whole=False), context(tmp_path, samples(16, 1, 8, 8, 3)))
    candidate = Candidate("w8a8")
    ours = variants.best(opened, candidate)
    assert ours.sqnr_db >= variants.best(opened, Candidate("w8a8", rounding="nearest")).sqnr_db

    def harmful(base, content, method, skip, grids=None):
        model = flatbuffer.load(content)
        for layer in layers.find(model):
            tensor = model.subgraphs[0].tensors[layer.bias]
            tensor.buffer = flatbuffer.add_constant(model, flatbuffer.data(model, tensor) + 1)
        return variants.Improved(flatbuffer.dump(model), {})

    monkeypatch.setattr(variants, "improve", harmful)
    worse = variants.best(source.open_source(opened.model, opened.context), candidate)
    assert any("second-order rounding is not used" in notice for notice in worse.notices)
    assert worse.sqnr_db >= ours.sqnr_db - 3


def test_activations_are_rounded_as_a_walk_over_the_operators_rounds_them(tmp_path):
    opened = source.open_source(pooled(tmp_path, whole=False), context(tmp_path, samples(4, 1, 8, 8, 3)))
    names = [flatbuffer.text(opened.fresh().subgraphs[0].tensors[i].name) for i in running.activations(opened.fresh())]
    on_grids = {name: grid.affine(float(opened.extremes[name].min()), float(opened.extremes[name].max())) for name in names}
    assert set(names) == {"x", "wide", "mean", "y"}
    walked, model = opened.fresh(), opened.fresh()
    flow = stream.over(opened, walked, on_grids)
    flow.advance(len(walked.subgraphs[0].operators))
    by_steps = list(flow.values(signatures.edges(walked, opened.model.signature)[1][0]))
    simulate.round_activations(model, on_grids)
    at_once = Interpreter(flatbuffer.dump(model), opened.model.signature)
    for sample, plain, wanted in zip(opened.samples, opened.reference, by_steps, strict=True):
        found = at_once.run(sample)["y"]
        np.testing.assert_allclose(found, on_grids["y"].round(found), atol=1e-5)
        np.testing.assert_allclose(found, wanted, atol=2.01 * on_grids["y"].scale)  # a tie inside may fall to either side
        assert np.abs(found - plain["y"]).max() > on_grids["y"].scale / 4


def test_one_extreme_sample_does_not_decide_alone():
    usual, extreme = np.ones(4), np.full(4, 1000.0)
    fine = [[(usual, usual + 0.01)] * 9 + [(extreme, extreme + 500)]]
    coarse = [[(usual, usual + 0.5)] * 9 + [(extreme, extreme + 10)]]
    assert simulate.level_db(fine) == pytest.approx((9 * 40 + 6.02) / 10, abs=0.01)
    assert simulate.level_db(fine) > simulate.level_db(coarse) + 10
    assert simulate.level_db([[(usual, usual)]]) == float("inf")
    assert simulate.level_db([[(usual, usual * np.nan)]]) == float("-inf")
    outputs = [[(usual, usual + 0.1)], [(usual, usual + 0.01)]]  # noise by signal 1e-2 and 1e-4
    assert simulate.level_db(outputs) == pytest.approx(-10 * np.log10(0.00505), abs=1e-6)


def test_parts_that_nothing_reads_become_integers_too(tmp_path: Path) -> None:
    """The first step of an unrolled LSTM: its state is zero, so nothing reads the forget gate. XNNPACK takes no split into both types."""
    net = Net()
    x, read, unread, y = (net.tensor(name, (1, 4 if name == "x" else 2)) for name in ("x", "read", "unread", "y"))
    net.add("SPLIT", [net.constant("axis", np.array(1, np.int32)), x], [read, unread], table="SplitOptions", numSplits=2)
    net.add("LOGISTIC", [read], [y])
    ranges = {"x": stock.Range(-4, 4, 2), "read": stock.Range(-4, 4, 2), "unread": stock.Range(-4, 4, 2), "y": stock.Range(0, 1, 2)}
    content = stock.quantize(net.pack([x], [y]), Candidate("w8a8"), stock.Policy(io="int8"), ranges)
    (tmp_path / "net.tflite").write_bytes(content)
    assert {t.dtype for t in tflite.graph(tmp_path / "net.tflite").tensors if not t.constant} == {"int8"}
    model = tflite.open(str(tmp_path / "net.tflite"), {})
    given, made = model.signature.inputs[0], model.signature.outputs[0]
    values = np.array([[-3.0, 1.0, 2.0, -1.0]], np.float32)
    found = tflite.session(model).run({given.name: quantize(values, given)})[made.name]
    np.testing.assert_allclose(dequantize(found, made), 1 / (1 + np.exp(-values[:, :2])), atol=0.02)


@pytest.mark.parametrize("io", ["int8", "float32"])
def test_an_output_that_a_float_operator_reads_too_is_named_alike_by_graph_and_signature(tmp_path: Path, io: str) -> None:
    """Scores and their best class: the quantizer has no integer form of ARG_MAX, and dequantizes the scores for it."""
    net = Net()
    x, y, best = net.tensor("x", (1, 4)), net.tensor("y", (1, 4)), net.tensor("best", (1,), "int32")
    net.add("LOGISTIC", [x], [y])
    net.add("ARG_MAX", [y, net.constant("axis", np.array([1], np.int32))], [best], table="ArgMaxOptions", outputType=2)
    net.signature({"x": x}, {"y": y, "best": best})
    ranges = {"x": stock.Range(-4, 4, 2), "y": stock.Range(0, 1, 2)}
    content = stock.quantize(net.pack([x], [y, best]), Candidate("w8a8"), stock.Policy(io=io), ranges)
    (tmp_path / "net.tflite").write_bytes(content)
    model, values = tflite.open(str(tmp_path / "net.tflite"), {}), np.array([[-3.0, 1.0, 2.0, -1.0]], np.float32)
    given, made = model.signature.inputs[0], {spec.name: spec for spec in model.signature.outputs}
    assert (given.dtype, made["y"].dtype) == (io, io)
    found = tflite.session(model).run({given.name: quantize(values, given)})
    np.testing.assert_allclose(dequantize(found["y"], made["y"]), 1 / (1 + np.exp(-values)), atol=0.02)
    assert found["best"].tolist() == [2]
