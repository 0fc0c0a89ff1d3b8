"""What builds of one ONNX graph share: its inputs as the graph has them, ranges and rounded weights computed once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit import formats, target
from edgekit.backends import Backend, Candidate, Context, onnxruntime, qnn
from edgekit.legalize import onnx_prepare
from edgekit.qdq import protos, source
from edgekit.qdq.source import Source
from edgekit.quantize import gathering

onnx = pytest.importorskip("onnx")
TEXT = '<ir_version: 8, opset_import: ["" : 17]> net (float[1, 4] x, int64[2] spare) => (float[1, 3] y) { a = Gemm (x, w, b)  y = Relu (a) }'
SAMPLES = [{"x": np.full((1, 4), value), "spare": np.arange(2)} for value in (-1.0, 1.0)]


@pytest.fixture
def model(tmp_path: Path) -> formats.Model:
    """A layer, and an input that nothing reads; the name of its output is none that every converter takes."""
    made = onnx.parser.parse_model(TEXT)
    for name, value in (("w", np.random.default_rng(0).uniform(0.2, 1, (4, 3))), ("b", np.zeros(3))):
        protos.set_constant(made, name, value.astype(np.float32))
    made.graph.output[0].name = made.graph.node[1].output[0] = "y:0"
    onnx.save(made, tmp_path / "net.onnx")
    return formats.open(str(tmp_path / "net.onnx"))


def test_inputs_that_nothing_reads_are_left_out(model: formats.Model, tmp_path: Path) -> None:
    prepared = onnx_prepare.prepare(model)
    proto = protos.canonical(prepared.model.handle)
    made = Source(model, proto, dict(prepared.inputs), dict(prepared.outputs), SAMPLES, tmp_path)
    assert [spec.name for spec in made.specs] == ["x"]
    assert [{name: (value.dtype, value.tolist()) for name, value in sample.items()} for sample in made.samples] == [
        {"x": (np.float32, [[-1.0] * 4])},
        {"x": (np.float32, [[1.0] * 4])},
    ]
    assert made.renamed == {"y:0": "y_0"}
    assert made.seen["x"].low == -1 and made.seen["x"].high == 1
    assert made.weights("nearest") is made.weights("nearest") and made.weights("nearest", 4) is not made.weights("nearest")
    level, gained = made.level
    assert level is made and gained == ()


@pytest.mark.parametrize(("samples", "judges"), [(0, 0), (1, 1), (8, 8), (16, 8), (32, 8), (256, 64)])
def test_ways_to_round_are_judged_on_eight_samples_or_more(samples: int, judges: int) -> None:
    found = source.contest(samples)
    assert len(found) == judges and set(found) <= set(range(samples))
    assert samples < 32 or set(found) == gathering.judging(samples)  # held out of what each layer chose


def check(backend: Backend, model: formats.Model, target_name: str, precision: str, work: Path) -> None:
    """Build with the spare input among the samples; the artifact takes what its signature lists."""
    work.mkdir()
    artifact = backend.prepare(model, Context(target.load(target_name), SAMPLES, work))(Candidate(precision, "second-order"))
    assert [spec.name for spec in artifact.signature.inputs] == ["x", "spare"]
    file = artifact.path / "model.onnx" if artifact.path.is_dir() else artifact.path
    assert [value.name for value in onnx.load(file).graph.input] == ["x", "spare"]
    inputs = {"x": np.linspace(0.2, 1, 4, dtype=np.float32)[None], "spare": np.zeros(2, np.int64)}
    right, got = formats.session(model).run(inputs)["y:0"], backend.emulate(artifact).run(inputs)["y:0"]
    assert np.abs(right - got).max() < 0.03 * np.abs(right).max()


@pytest.mark.parametrize("precision", onnxruntime.precisions)
def test_a_spare_input_stops_no_onnxruntime_build(model: formats.Model, tmp_path: Path, precision: str) -> None:
    check(onnxruntime, model, "android-arm64-ort", precision, tmp_path / "work")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "mixed", "a16w8"])
def test_a_spare_input_stops_no_hexagon_build(model: formats.Model, tmp_path: Path, precision: str) -> None:
    pytest.importorskip("onnxruntime_qnn")
    check(qnn, model, "hexagon-v75", precision, tmp_path / "work")
