"""Rewrites of a `.tflite` for integer-only runtimes: the values before and after, in LiteRT's reference kernels and in TFLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

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


def test_what_is_read_as_real_values_stays_in_float(tmp_path: Path) -> None:
    path = island(tmp_path / "net.tflite", "LEAKY_RELU", alone=False, table="LeakyReluOptions", alpha=0.2)
    before = path.read_bytes()
    assert tflite_islands.to_integers(path) == () and path.read_bytes() == before
