"""What converters leave around an integer net (float or uint8 edges, shapes computed as it runs): before and after, in LiteRT's reference kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from edgekit import packager
from edgekit.formats import tflite, tflm
from edgekit.legalize import tflite_micro
from edgekit.tensors import quantize
from tests.tflite_build import Net

GIVEN, MADE = {"scale": 0.02, "zero_point": 3}, {"scale": 0.05, "zero_point": -10}
SHIFTED = {"uint8": 128, "int8": 0}


def converted(path: Path, edge: str) -> Path:
    """A convolution behind a pad without options, and a dense layer on its map flattened by a shape that is computed, as TensorFlow writes them."""
    rng, net = np.random.default_rng(8), Net()
    edges = {name: q | {"zero_point": q["zero_point"] + SHIFTED[edge]} if edge in SHIFTED else {} for name, q in (("x", GIVEN), ("y", MADE))}
    given = net.tensor("x", (-1, 4, 4, 2), edge, **edges["x"])
    a, b, c = (net.tensor(n, (-1, size, size, 2), "int8", **GIVEN) for n, size in (("a", 4), ("b", 6), ("c", 4)))
    if edge == "int8":
        a = given
    else:
        net.add("QUANTIZE", [given], [a])
    net.add("PAD", [a, net.constant("sides", np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32))], [b], version=2)
    weights = net.constant("w0", rng.integers(-127, 128, (2, 3, 3, 2)).astype(np.int8), scale=np.array([0.01, 0.02]))
    conv = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    bias = net.constant("b0", np.array([40, -70], np.int32), scale=0.02 * np.array([0.01, 0.02]))
    net.add("CONV_2D", [b, weights, bias], [c], version=3, table="Conv2DOptions", **conv)
    whole, first, shape = net.tensor("shape", (4,), "int32"), net.tensor("batch", (), "int32"), net.tensor("flat", (2,), "int32")
    net.add("SHAPE", [c], [whole], table="ShapeOptions", outType=2)
    bounds = [net.constant(n, np.array([v], np.int32)) for n, v in (("begin", 0), ("end", 1), ("step", 1))]
    net.add("STRIDED_SLICE", [whole, *bounds], [first], table="StridedSliceOptions", shrinkAxisMask=1)
    net.add("PACK", [first, net.constant("rest", np.array(32, np.int32))], [shape], table="PackOptions", valuesCount=2)
    d, e = net.tensor("d", (-1, 32), "int8", **GIVEN), net.tensor("e", (-1, 3), "int8", **MADE)
    net.add("RESHAPE", [c, shape], [d])
    dense = net.constant("w1", rng.integers(-127, 128, (3, 32)).astype(np.int8), scale=0.004)
    net.add("FULLY_CONNECTED", [d, dense], [e], version=4, table="FullyConnectedOptions")
    made = net.tensor("y", (-1, 3), edge, **edges["y"])
    if edge != "int8":
        net.add("DEQUANTIZE" if edge == "float32" else "QUANTIZE", [e], [made])
    path.write_bytes(net.pack([given], [e if edge == "int8" else made]))
    return path


def run(path: Path, values: Any) -> Any:
    model = tflite.open(str(path), {})
    return tflite.session(model, reference_kernels=True).run({model.signature.inputs[0].name: values})[model.signature.outputs[0].name]


@pytest.mark.parametrize("edge", ["float32", "uint8", "int8"])
def test_an_integer_model_is_given_integer_edges_and_static_shapes(tmp_path: Path, edge: str) -> None:
    source = converted(tmp_path / "net.tflite", edge)
    settled, notices = tflite_micro.prepare(tflite.open(str(source), {}), "w8a8", tmp_path, {})
    assert settled.path is not None
    found = tflite.open(str(settled.path), {}).signature
    kept = ["QUANTIZE"] if edge == "uint8" else []
    assert [o.type for o in tflite.graph(settled.path).operators] == [*kept, "PAD", "CONV_2D", "RESHAPE", "FULLY_CONNECTED", *kept]
    assert [spec.dtype for spec in (*found.inputs, *found.outputs)] == ["int8" if edge == "float32" else edge] * 2
    assert sum("in place of float32" in said for said in notices) == (2 if edge == "float32" else 0)
    real = {found.inputs[0].name: np.random.default_rng(9).normal(0, 1, (1, 4, 4, 2)).astype(np.float32)}
    stored = quantize(real[found.inputs[0].name], found.inputs[0])
    before, after = run(source, real[found.inputs[0].name] if edge == "float32" else stored), run(settled.path, stored)
    scaled = (after.astype(np.float32) - MADE["zero_point"]) * np.float32(MADE["scale"]) if edge == "float32" else after
    np.testing.assert_allclose(scaled, before, rtol=1e-6, atol=0)
    assert len(np.unique(after)) > 1
    pytest.importorskip("tflite_micro")
    interpreted = tflm.Interpreter(settled.path, found).run({found.inputs[0].name: stored})[found.outputs[0].name]
    np.testing.assert_array_equal(interpreted, after)


def test_a_model_that_has_them_already_stays_as_it_is(tmp_path: Path) -> None:
    net = Net()
    x, y = (net.tensor(name, (1, 4), "int8", scale=0.1) for name in "xy")
    net.add("ABS", [x], [y])
    state = net.tensor("state", (), "resource")
    net.add("VAR_HANDLE", [], [state], table="VarHandleOptions", sharedName="state")
    net.add("ASSIGN_VARIABLE", [state, y], [], table="AssignVariableOptions")
    (tmp_path / "net.tflite").write_bytes(net.pack([x], [y]))
    model = tflite.open(str(tmp_path / "net.tflite"), {})
    assert tflite_micro.prepare(model, "w8a8", tmp_path, {}) == (model, ())


@pytest.mark.slow
@pytest.mark.parametrize("edge", ["float32", "uint8"])
def test_c_is_generated_from_what_converters_leave(tmp_path: Path, edge: str) -> None:
    """Packaging refuses C that differs from the reference kernels in one byte."""
    pytest.importorskip("bakenn")
    options = packager.Options(out=tmp_path, rebuild=True)
    outcome = packager.package(str(converted(tmp_path / "net.tflite", edge)), "mcu-cortex-m0plus-c", options)
    assert outcome.bundle, outcome.findings
    assert any("equals LiteRT's reference kernels to the byte" in said for said in outcome.manifest.notices)
    assert outcome.manifest.signature.inputs[0].dtype == ("int8" if edge == "float32" else edge)
