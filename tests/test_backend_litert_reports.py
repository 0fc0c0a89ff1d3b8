"""What users of other toolchains ran into with small models: files that do not shrink, saturating hosts, samples of varying length."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from edgekit.backends import Candidate, litert
from edgekit.backends.litert import source
from edgekit.formats import tflite
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize.ranges import choose

pytest.importorskip("ai_edge_quantizer")
from tests.decibels import sqnr_db
from tests.litert_models import Builder, context, floats


def tiny(folder):
    """1-16-16-1, 321 weights and biases."""
    random = np.random.default_rng(0)
    b = Builder(("x", (1, 1)))
    one = b.dense(0, "one", floats(random, 16, 1), floats(random, 16), relu=True)
    two = b.dense(one, "two", floats(random, 16, 16), floats(random, 16), relu=True)
    return b.write(folder, b.dense(two, "y", floats(random, 1, 16), floats(random, 1)))


@pytest.mark.parametrize("precision", ["fp16", "w8", "w8-dynamic", "w8a8", "w8a16"])
def test_a_tiny_net_claims_no_reduction_that_its_bytes_do_not_show(tmp_path, precision):
    model, random = tiny(tmp_path), np.random.default_rng(1)
    build = litert.prepare(model, context(tmp_path, [{"x": floats(random, 1, 1)} for _ in range(16)]))
    artifact = build(Candidate(precision))
    given, made = build(Candidate("fp32")).path.stat().st_size, artifact.path.stat().st_size
    said = [notice for notice in artifact.notices if "no smaller than float" in notice]
    assert bool(said) == (made >= given)
    assert all(f"{made} bytes against {given}" in notice for notice in said)


def full_range(folder):
    """64 inputs of up to 255 steps, weights of 127 steps either way: pairs of products overflow 16 bits (2 * 255 * 127 > 32767)."""
    random = np.random.default_rng(2)
    weight = random.choice([-1.0, 1.0], (16, 64)).astype(np.float32)
    weight[:4] = 1  # the largest sums there are
    b = Builder(("x", (1, 64)))
    return b.write(folder, b.dense(0, "y", weight, np.zeros(16, np.float32)))


def exact(content, given):
    """The dense layer in whole numbers of any size, requantized in double precision, from the file's own constants (float64 [16], in steps)."""
    parsed = flatbuffer.load(content)
    graph = parsed.subgraphs[0]
    (dense,) = [op for op in graph.operators if flatbuffer.op_name(parsed, op) == "FULLY_CONNECTED"]
    x, weight, bias, y = (graph.tensors[i] for i in (*dense.inputs, *dense.outputs))
    integers = flatbuffer.data(parsed, weight).astype(object)
    total = [sum(int(w) * (int(v) - int(x.quantization.zeroPoint[0])) for w, v in zip(row, given[0], strict=True)) for row in integers]
    sums = np.array(total, np.float64) + flatbuffer.data(parsed, bias).astype(np.float64)
    scale = float(x.quantization.scale[0]) * np.asarray(weight.quantization.scale, np.float64) / float(y.quantization.scale[0])
    return np.clip(np.rint(sums * scale) + int(y.quantization.zeroPoint[0]), -128, 127), integers


def test_full_range_integers_do_not_saturate_on_this_host(tmp_path):
    random = np.random.default_rng(3)
    model = full_range(tmp_path)
    calibration = [{"x": random.uniform(0, 1, (1, 64)).astype(np.float32)} for _ in range(7)] + [{"x": np.ones((1, 64), np.float32)}]
    artifact = litert.prepare(model, context(tmp_path, calibration, io="int8"))(Candidate("w8a8", rounding="nearest"))
    session, content = litert.emulate(artifact), artifact.path.read_bytes()
    for given in (np.full((1, 64), 127, np.int8), *(random.integers(-128, 128, (1, 64)).astype(np.int8) for _ in range(4))):
        wanted, integers = exact(content, given)
        assert set(np.abs(integers).ravel()) == {127}
        assert np.abs(session.run({"x": given})["y"][0].astype(np.int64) - wanted).max() <= 1


def of_any_length(folder):
    """Two linear layers over a number of steps that is open."""
    random = np.random.default_rng(4)
    b = Builder(("x", (1, 8)))
    one = b.dense(0, "one", floats(random, 32, 8, scale=0.3), floats(random, 32), relu=True)
    b.write(folder, b.dense(one, "y", floats(random, 4, 32, scale=0.3), floats(random, 4)), name="open")
    for index in (0, one, b.graph.outputs[0]):
        b.graph.tensors[index].shapeSignature = [-1, b.graph.tensors[index].shape[1]]
    (folder / "open.tflite").write_bytes(flatbuffer.dump(b.model))
    return tflite.open(str(folder / "open.tflite"), {"x": (6, 8)})


def of_lengths(count, seed=5):
    random = np.random.default_rng(seed)
    return [{"x": floats(random, 3 + number % 4, 8) + 1} for number in range(count)]


def float_values(opened, samples):
    """Every value of every activation in the float model, by name, one sample after the other in an interpreter of its own."""
    from ai_edge_litert.interpreter import Interpreter

    found = {}
    for sample in samples:
        session = Interpreter(model_content=opened.content, experimental_preserve_all_tensors=True)
        session.resize_tensor_input(0, sample["x"].shape)
        session.allocate_tensors()
        session.set_tensor(0, sample["x"])
        session.invoke()
        for name in opened.extremes:
            index = next(d["index"] for d in session.get_tensor_details() if d["name"] == name)
            found.setdefault(name, []).append(session.get_tensor(index).ravel())
    return {name: np.concatenate(values) for name, values in found.items()}


def test_samples_of_varying_length_give_ranges_that_every_method_keeps_within_what_was_seen(tmp_path):
    samples = of_lengths(8)
    opened = source.open_source(of_any_length(tmp_path), context(tmp_path, samples))
    values = float_values(opened, samples)
    assert set(values) == {"x", "one", "y"}
    for name, seen in values.items():
        low, high = min(seen.min(), 0), max(seen.max(), 0)
        assert choose(opened.histograms[name], "minmax") == pytest.approx((low, high), rel=1e-5, abs=1e-6)
        assert opened.histograms[name].counts.sum() == seen.size
        for method in ("percentile", "mse"):
            found = choose(opened.histograms[name], method)
            assert low - 1e-5 <= found[0] <= 0 <= found[1] <= high + 1e-5, (name, method)
            assert np.mean((seen >= found[0] - 1e-5) & (seen <= found[1] + 1e-5)) >= 0.9, (name, method)
            assert (low == 0) == (found[0] == 0), (name, method)  # one-sided stays one-sided, two-sided stays two-sided


@pytest.mark.parametrize(("precision", "least_db"), [("w8", 35), ("w8a8", 25), ("w8a16", 35)])
def test_a_model_of_open_length_is_quantized_from_samples_of_varying_length(tmp_path, precision, least_db):
    model = of_any_length(tmp_path)
    artifact = litert.prepare(model, context(tmp_path, of_lengths(8)))(Candidate(precision))
    (sample,) = [s for s in of_lengths(4, seed=6) if s["x"].shape == (6, 8)]
    reference = float_values(source.open_source(model, context(tmp_path, [sample])), [sample])["y"]
    found = litert.emulate(artifact).run(sample)["y"].ravel()
    assert sqnr_db(reference, found) >= least_db


def test_ranges_of_many_samples_are_measured_in_the_memory_of_few(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "VALUES", 512)
    random = np.random.default_rng(0)
    b = Builder(("x", (1, 32, 32, 3)))
    model = b.write(tmp_path, b.conv(0, "y", floats(random, 16, 3, 3, 3, scale=0.3), floats(random, 16), relu=True))

    def peak_bytes(count):
        calibration = tuple({"x": floats(random, 1, 32, 32, 3)} for _ in range(count))
        opened = source.open_source(model, context(tmp_path, calibration))
        assert len(opened.samples) == count
        tracemalloc.start()
        try:
            assert opened.extremes["y"].shape == (count, 2)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_bytes(4)  # imports and the runtime's own start
    few, many = peak_bytes(8), peak_bytes(200)
    assert many < few + 200 * 4096  # one activation alone takes 65,536 bytes a sample
