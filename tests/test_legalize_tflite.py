"""Rewrites of a `.tflite` for integer-only runtimes: the values before and after, in LiteRT's reference kernels and in TFLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from edgekit import opset
from edgekit.formats import tflite, tflm
from edgekit.legalize import tflite_islands, tflite_micro
from tests.tflite_build import Net

SLOPES = np.array([0.25, -0.5, 1.5, 0.01], np.float32)


def run(path: Path, values: Any) -> Any:
    model = tflite.open(str(path), {})
    (given,), (made,) = model.signature.inputs, model.signature.outputs
    return tflite.session(model, reference_kernels=True).run({given.name: values})[made.name]


def kinds(path: Path) -> list[str]:
    return [operator.type for operator in tflite.graph(path).operators]


@pytest.mark.parametrize(("times", "becomes"), [([1, 3, 1], "CONCATENATION"), ([1, 2, 2], "TILE"), ([1, 11, 1], "TILE")])
def test_a_repetition_along_one_axis_becomes_a_join(tmp_path: Path, times: list[int], becomes: str) -> None:
    net, values = Net(), np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    x, y = net.tensor("x", (1, 2, 3)), net.tensor("y", np.array([1, 2, 3]) * times)
    net.add("TILE", [x, net.constant("times", np.array(times, np.int32))], [y])
    (tmp_path / "net.tflite").write_bytes(net.pack([x], [y]))
    path, notices = tflite_micro.rewrite(tmp_path / "net.tflite", tmp_path / "out.tflite", pools=False)
    assert (kinds(path), bool(notices)) == ([becomes], becomes != "TILE")
    np.testing.assert_array_equal(run(path, values), np.tile(values, times))


def attention(path: Path, dtype: str = "float32") -> Path:
    """A dense layer whose weights are an input."""
    net, scale = Net(), {} if dtype == "float32" else {"scale": 0.1}
    x, w, y = (net.tensor(name, shape, dtype, **scale) for name, shape in (("x", (3, 4)), ("w", (5, 4)), ("y", (3, 5))))
    net.add("FULLY_CONNECTED", [x, w], [y], version=4, table="FullyConnectedOptions")
    path.write_bytes(net.pack([x, w], [y]))
    return path


def test_a_dense_layer_of_computed_weights_becomes_a_product(tmp_path: Path) -> None:
    path, notices = tflite_micro.rewrite(attention(tmp_path / "net.tflite"), tmp_path / "out.tflite", pools=False)
    assert kinds(path) == ["BATCH_MATMUL"] and notices == ("y: a dense layer of computed weights is a product of two matrices",)
    model, rng = tflite.open(str(path), {}), np.random.default_rng(0)
    x, w = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_allclose(tflite.session(model, reference_kernels=True).run({"x": x, "w": w})["y"], x @ w.T, rtol=1e-5)


def test_integers_that_have_it_are_refused(tmp_path: Path) -> None:
    (verdict,) = opset.judge(tflite.graph(attention(tmp_path / "net.tflite", "int8")), "cmsis_nn_mve", {"kernels": "tflm"})
    assert verdict.status == "unsupported" and "these are computed" in verdict.reason


def island(path: Path, kind: str, shape: tuple[int, ...] = (1, 2, 2, 4), *, alone: bool = True, **options: Any) -> Path:
    """int8 -> DEQUANTIZE -> the operator in float -> QUANTIZE -> int8 of another scale; not `alone`, something reads the float values too."""
    net = Net()
    x, y = net.tensor("x", (1, 2, 2, 4), "int8", scale=0.03, zero_point=5), net.tensor("y", shape, "int8", scale=0.04, zero_point=-20)
    before, behind = net.tensor("before", (1, 2, 2, 4)), net.tensor("behind", shape)
    net.add("DEQUANTIZE", [x], [before])
    slopes = [net.constant("slopes", SLOPES.reshape(1, 1, 4))] if kind == "PRELU" else []
    net.add(kind, [before, *slopes], [behind], **options)
    if not alone:
        net.add("ABS", [behind], [net.tensor("real", shape)])
    net.add("QUANTIZE", [behind], [y])
    path.write_bytes(net.pack([x], [y]))
    return path


ISLANDS = {
    "LEAKY_RELU": ((1, 2, 2, 4), {"table": "LeakyReluOptions", "alpha": 0.2}, ["LEAKY_RELU"]),
    "PRELU": ((1, 2, 2, 4), {}, ["PRELU"]),
    "DEPTH_TO_SPACE": ((1, 4, 4, 1), {"table": "DepthToSpaceOptions", "blockSize": 2}, ["DEPTH_TO_SPACE", "QUANTIZE"]),
}


@pytest.mark.parametrize("kind", ISLANDS)
def test_a_float_operator_among_integers_becomes_one_of_them(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("tflite_micro")
    shape, options, left = ISLANDS[kind]
    path = island(tmp_path / "net.tflite", kind, shape, **options)
    values = np.random.default_rng(1).integers(-128, 128, (1, 2, 2, 4)).astype(np.int8)
    before = run(path, values).astype(int)
    (name,) = tflite_islands.to_integers(path)
    assert name.startswith(kind) and kinds(path) == left
    tflite_micro.refuse(tflite.graph(path), "net")
    after = run(path, values)
    assert len(np.unique(after)) > 4 and np.abs(after - before).max() <= 1, "one rounding more or less"
    model = tflite.open(str(path), {})
    np.testing.assert_array_equal(tflm.Interpreter(path, model.signature).run({"x": values})["y"], after)


def test_the_place_of_the_largest_value_is_found_among_integers(tmp_path: Path) -> None:
    net = Net()
    x, real, y = net.tensor("x", (3, 8), "int8", scale=0.03, zero_point=5), net.tensor("real", (3, 8)), net.tensor("y", (3,), "int32")
    net.add("DEQUANTIZE", [x], [real])
    net.add("ARG_MAX", [real, net.constant("axis", np.array([1], np.int32))], [y], table="ArgMaxOptions", outputType=2)
    (tmp_path / "net.tflite").write_bytes(net.pack([x], [y]))
    assert len(tflite_islands.to_integers(tmp_path / "net.tflite")) == 1 and kinds(tmp_path / "net.tflite") == ["ARG_MAX"]
    values = np.random.default_rng(1).permuted(np.arange(-12, 12).reshape(3, 8), axis=1).astype(np.int8)
    np.testing.assert_array_equal(run(tmp_path / "net.tflite", values), values.argmax(1))


def test_what_is_read_as_real_values_stays_in_float(tmp_path: Path) -> None:
    path = island(tmp_path / "net.tflite", "LEAKY_RELU", alone=False, table="LeakyReluOptions", alpha=0.2)
    before = path.read_bytes()
    assert tflite_islands.to_integers(path) == () and path.read_bytes() == before
