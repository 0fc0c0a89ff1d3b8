"""What users of 8-bit ONNX files report: lost scores, uneven channels, blocks left apart, norms, inputs of varying length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit import formats, target
from edgekit.backends import Artifact, Candidate, Context
from edgekit.backends import onnxruntime as backend
from edgekit.qdq import protos, rounding, stream, write
from edgekit.quantize import ranges
from tests.decibels import sqnr_db

onnx = pytest.importorskip("onnx")

DETECTOR = """(float[1, 3, 8, 8] x) => (float[1, 6, 64] y)
    { f = Conv <pads = [1, 1, 1, 1]> (x, w)  r = Relu (f)
      b = Conv (r, wb)  bs = Sigmoid (b)  bf = Reshape (bs, four)  boxes = Mul (bf, pixels)
      k = Conv (r, wk)  ks = Sigmoid (k)  scores = Reshape (ks, two)  y = Concat <axis = 1> (boxes, scores) }"""
UNEVEN = "(float[1, 16, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Conv <group = 16, pads = [1, 1, 1, 1]> (x, w)  y = Conv (a, v) }"
BLOCK = """(float[1, 4, 8, 8] x) => (float[1, 8, 8, 8] y)
    { a = Conv (x, w)  n = BatchNormalization (a, gain, shift, mean, variance)  d = Div (n, root)  e = Erf (d)  p = Add (e, one)
      m = Mul (n, p)  y = Mul (m, half) }"""
NORM = """(float[1, 4, 32] x) => (float[1, 4, 32] y)
    { m = ReduceMean <axes = [-1]> (x)  d = Sub (x, m)  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)  w = Add (v, epsilon)  s = Sqrt (w)
      i = Reciprocal (s)  z = Mul (d, i)  y = MatMul (z, weight) }"""


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randn(*shape).astype(np.float32)


def model(folder: Path, text: str, **constants: object) -> formats.Model:
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> net {text}')
    for name, value in constants.items():
        array = np.asarray(value)
        protos.set_constant(made, name, array if array.dtype == np.int64 else array.astype(np.float32))
    onnx.save(made, folder / "net.onnx")
    return formats.open(str(folder / "net.onnx"))


def build(found: formats.Model, samples: list[np.ndarray], folder: Path) -> Artifact:
    (folder / "work").mkdir()
    return backend.prepare(found, Context(target.load("android-arm64-ort"), [{"x": x} for x in samples], folder / "work"))(Candidate("w8a8"))


def both(found: formats.Model, artifact: Artifact, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return formats.session(found).run({"x": x})["y"], backend.emulate(artifact).run({"x": x})["y"]


def detector(folder: Path) -> formats.Model:
    """Boxes up to 640 pixels and scores up to 1 in one output."""
    weights = {"w": normal(16, 3, 3, 3) * 0.2, "wb": normal(4, 16, 1, 1, seed=1) * 0.15, "wk": normal(2, 16, 1, 1, seed=2) * 0.6}
    return model(folder, DETECTOR, **weights, pixels=640.0, four=np.array([1, 4, 64]), two=np.array([1, 2, 64]))


def test_scores_beside_boxes_keep_their_resolution(tmp_path: Path) -> None:
    found = detector(tmp_path)
    artifact = build(found, [normal(1, 3, 8, 8, seed=seed) for seed in range(16)], tmp_path)
    right, got = both(found, artifact, normal(1, 3, 8, 8, seed=99))
    assert np.abs(got - right)[:, 4:].max() < 0.02
    assert np.abs(got - right)[:, :4].max() < 6
    assert np.ptp(right[:, 4:]) > 0.5
    assert len(np.unique(got[:, 4:].round(4))) > 64  # the 128 scores of 7 bits that they are drawn from
    assert any("y joins unlike ranges: boxes reaches" in notice for notice in artifact.notices)


def test_channels_of_unlike_reach_are_moved_between_layers(tmp_path: Path) -> None:
    reach = np.logspace(-2, 1.5, 16)
    weights = {"w": normal(16, 1, 3, 3) * reach[:, None, None, None], "v": normal(4, 16, 1, 1, seed=1) / reach[None, :, None, None]}
    found = model(tmp_path, UNEVEN, **weights)
    artifact = build(found, [normal(1, 16, 8, 8, seed=seed) for seed in range(16)], tmp_path)
    right, got = (values.ravel() for values in both(found, artifact, normal(1, 16, 8, 8, seed=50)))
    assert right @ got / np.linalg.norm(right) / np.linalg.norm(got) > 0.998
    assert any("equalized, around a" in notice for notice in artifact.notices)


def test_a_block_left_apart_is_put_together_before_it_is_quantized(tmp_path: Path) -> None:
    norm = {"gain": normal(8, seed=1) ** 2 + 0.5, "shift": normal(8, seed=2), "mean": normal(8, seed=3), "variance": normal(8, seed=4) ** 2 + 0.5}
    found = model(tmp_path, BLOCK, w=normal(8, 4, 1, 1) * 0.5, root=2**0.5, one=1.0, half=0.5, **norm)
    artifact = build(found, [normal(1, 4, 8, 8, seed=seed) for seed in range(16)], tmp_path)
    assert [o.type for o in backend.graph(artifact).operators if "Linear" not in o.type] == ["Conv", "Gelu"]
    right, got = both(found, artifact, normal(1, 4, 8, 8, seed=50))
    assert np.abs(got - right).max() < 0.02 * np.ptp(right)


def test_a_variance_that_eight_bits_do_not_hold_stays_float(tmp_path: Path) -> None:
    """Rows from 0.01 to 100: on one grid the variances of the small ones are zero."""
    found = model(tmp_path, NORM, epsilon=1e-6, weight=normal(32, 32) * 0.2)
    rows = np.array([0.01, 1, 10, 100], np.float32)[:, None]
    artifact = build(found, [normal(1, 4, 32, seed=seed) * rows for seed in range(16)], tmp_path)
    right, got = both(found, artifact, normal(1, 4, 32, seed=50) * rows)
    assert sqnr_db(right, got) > 25
    assert any("stay float, as 8 bits of one would spoil the outputs" in notice for notice in artifact.notices)


def test_samples_of_varying_length_calibrate(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> net (float[N, 6] x) => (float[N, 4] y) { a = MatMul (x, w)  r = Relu (a)  y = MatMul (r, v) }'
    found = onnx.parser.parse_model(text)
    for name, value in (("w", normal(6, 8)), ("v", normal(8, 4, seed=1))):
        protos.set_constant(found, name, value)
    found = protos.canonical(onnx.shape_inference.infer_shapes(found))
    samples = [{"x": normal(3 + seed % 4, 6, seed=seed)} for seed in range(8)]
    seen = stream.histograms(found, samples, lambda *_: None)
    assert seen["x"].low == min(sample["x"].min() for sample in samples)
    for method in ("percentile", "mse", "minmax", "entropy"):
        low, high = ranges.choose(seen["r"], method)  # one-sided: what a ReLU gives
        assert low == 0 and 0.5 * seen["r"].high <= high <= seen["r"].high
        grids = write.grids(write.write(rounding.round_weights(found, samples, seen, tmp_path, method="nearest"), seen, write.Policy(8, method)))
        weights = rounding.round_weights(found, samples, seen, tmp_path, grids=grids)
        session, exact = protos.session(write.write(weights, seen, write.Policy(8, method))), protos.session(found)
        pairs = [(session.run(None, sample)[0], exact.run(None, sample)[0]) for sample in samples]
        error, power = (sum(float((values**2).sum()) for values in rows) for rows in ([a - b for a, b in pairs], [b for _, b in pairs]))
        assert 10 * np.log10(power / error) > 25, method
