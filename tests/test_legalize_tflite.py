"""Rewrites of a `.tflite` for integer-only runtimes: the values before and after, in LiteRT's reference kernels and in TFLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from edgekit import opset
from edgekit.formats import tflite, tflm
from edgekit.legalize import tflite_columns, tflite_islands, tflite_micro, tflite_tidy
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
    path, notices = tflite_micro.rewrite(tmp_path / "net.tflite", tmp_path / "out.tflite", {})
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
    path, notices = tflite_micro.rewrite(attention(tmp_path / "net.tflite"), tmp_path / "out.tflite", {})
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


def rewritten(net: Net, inputs: list[int], outputs: list[int], folder: Path, **options: str) -> tuple[Path, Path, tuple[str, ...]]:
    before = net.write(folder / "net.tflite", inputs, outputs)
    path, notices = tflite_micro.rewrite(before, folder / "out.tflite", options)
    return before, path, notices


def headed(width: int, *, flat: str = "RESHAPE", channels: int = 16) -> tuple[Net, int, int]:
    """A convolution, a mean over its map, and a dense layer of `width` outputs."""
    rng, net = np.random.default_rng(7), Net()
    x, a = net.tensor("x", (1, 8, 8, 4)), net.tensor("a", (1, 8, 8, channels))
    filters = net.constant("filters", rng.normal(size=(channels, 3, 3, 4)).astype(np.float32))
    bias = net.constant("bias", rng.normal(size=channels).astype(np.float32))
    conv = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    net.add("CONV_2D", [x, filters, bias], [a], table="Conv2DOptions", fusedActivationFunction=1, **conv)
    b, y = net.tensor("b", (1, 1, 1, channels) if flat == "RESHAPE" else (1, channels)), net.tensor("y", (1, width))
    net.add("MEAN", [a, net.constant("axes", np.array([1, 2], np.int32))], [b], table="ReducerOptions", keepDims=flat == "RESHAPE")
    if flat == "RESHAPE":
        c = net.tensor("c", (1, channels))
        net.add("RESHAPE", [b, net.constant("shape", np.array([1, channels], np.int32))], [c])
        b = c
    weights = net.constant("w", rng.normal(size=(width, channels)).astype(np.float32))
    net.add("FULLY_CONNECTED", [b, weights], [y], table="FullyConnectedOptions", fusedActivationFunction=1)
    return net, x, y


@pytest.mark.parametrize("flat", ["RESHAPE", ""])
@pytest.mark.parametrize(("width", "layer"), [(5, "CONV_2D"), (60, "FULLY_CONNECTED")])
def test_a_small_dense_layer_behind_a_map_becomes_a_convolution(tmp_path: Path, width: int, layer: str, flat: str) -> None:
    """Of 36,864 products 2% are 737: 5 x 16 are fewer, 60 x 16 more."""
    net, x, y = headed(width, flat=flat)
    before, path, notices = rewritten(net, [x], [y], tmp_path, dense="pointwise")
    wanted = ["CONV_2D", "MEAN", "CONV_2D", "RESHAPE"] if layer == "CONV_2D" else kinds(before)
    assert kinds(path) == wanted and len(notices) == (layer == "CONV_2D")
    values = np.random.default_rng(1).normal(size=(1, 8, 8, 4)).astype(np.float32)
    np.testing.assert_allclose(run(path, values), run(before, values), rtol=1e-5, atol=1e-5)


def test_dense_layers_stay_where_rows_would_have_to_be_reshaped(tmp_path: Path) -> None:
    rng, net = np.random.default_rng(3), Net()
    x, y, z = (net.tensor(name, (1, 8)) for name in "xyz")
    for before, behind in ((x, y), (y, z)):
        weights = net.constant(f"w{behind}", rng.normal(size=(8, 8)).astype(np.float32))
        net.add("FULLY_CONNECTED", [before, weights], [behind], table="FullyConnectedOptions")
    source, path, _ = rewritten(net, [x], [z], tmp_path, dense="pointwise")
    assert path == source


def test_rows_with_one_scale_do_not_reach_the_assertion_in_tflm(tmp_path: Path) -> None:
    net = Net()
    x, y = net.tensor("x", (1, 6, 8)), net.tensor("y", (1, 6, 1))
    weights = net.constant("w", np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8))
    net.add("FULLY_CONNECTED", [x, weights], [y], table="FullyConnectedOptions", keepNumDims=True)
    before, path, _ = rewritten(net, [x], [y], tmp_path, dense="pointwise")
    assert kinds(path) == ["RESHAPE", "CONV_2D", "RESHAPE"]
    values = np.random.default_rng(1).normal(size=(1, 6, 8)).astype(np.float32)
    np.testing.assert_allclose(run(path, values), run(before, values), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axes", [[1], [1, 2], [-1]])
def test_a_sum_becomes_a_mean_and_a_multiple_of_it(tmp_path: Path, axes: list[int]) -> None:
    net, values = Net(), np.random.default_rng(2).normal(size=(1, 4, 5, 3)).astype(np.float32)
    x, y = net.tensor("x", values.shape), net.tensor("y", values.sum(tuple(axes)).shape)
    net.add("SUM", [x, net.constant("axes", np.array(axes, np.int32))], [y], table="ReducerOptions")
    _, path, notices = rewritten(net, [x], [y], tmp_path)
    assert kinds(path) == ["MEAN", "MUL"] and len(notices) == 1
    np.testing.assert_allclose(run(path, values), values.sum(tuple(axes)), rtol=1e-4, atol=1e-5)


def test_many_steps_are_joined_in_groups_that_tflm_takes(tmp_path: Path) -> None:
    net, count = Net(), 23
    x = net.tensor("x", (1, 2))
    steps = [net.tensor(f"s{i}", (1, 2)) for i in range(count)]
    for number, step in enumerate(steps):
        net.add("MUL", [x, net.constant(f"c{number}", np.float32(number))], [step], table="MulOptions")
    y = net.tensor("y", (1, 2 * count))
    net.add("CONCATENATION", steps, [y], table="ConcatenationOptions", axis=-1)
    _, path, _ = rewritten(net, [x], [y], tmp_path)
    joins = [operator for operator in tflite.graph(path).operators if operator.type == "CONCATENATION"]
    assert sorted(len(operator.inputs) for operator in joins) == [3, 3, 10, 10]
    values = np.array([[1, -2]], np.float32)
    np.testing.assert_array_equal(run(path, values), np.concatenate([values * i for i in range(count)], axis=1))


def test_a_mean_is_taken_of_the_map_before_it_was_moved(tmp_path: Path) -> None:
    """As converters leave global pooling over time: channels moved to the front, and the mean over what is behind them."""
    net, values = Net(), np.random.default_rng(4).normal(size=(1, 1, 6, 4)).astype(np.float32)
    x, a, b, y = net.tensor("x", values.shape), net.tensor("a", (1, 4, 1, 6)), net.tensor("b", (1, 4, 6)), net.tensor("y", (1, 4))
    net.add("TRANSPOSE", [x, net.constant("order", np.array([0, 3, 1, 2], np.int32))], [a])
    net.add("RESHAPE", [a, net.constant("shape", np.array([1, 4, 6], np.int32))], [b])
    net.add("MEAN", [b, net.constant("axes", np.array([2], np.int32))], [y], table="ReducerOptions")
    _, path, _ = rewritten(net, [x], [y], tmp_path, means="pools")
    assert kinds(path) == ["AVERAGE_POOL_2D", "RESHAPE"]
    np.testing.assert_allclose(run(path, values), values.mean((1, 2)), rtol=1e-5, atol=1e-6)


def test_moves_that_lead_back_are_one_reshape_and_others_stay(tmp_path: Path) -> None:
    for order, wanted in (([0, 2, 1], ["RESHAPE", "ABS"]), ([0, 1, 2], ["TRANSPOSE", "TRANSPOSE", "ABS"])):
        net, values = Net(), np.arange(12, dtype=np.float32).reshape(1, 3, 4)
        x, a, b, y = net.tensor("x", (1, 3, 4)), net.tensor("a", (1, 4, 3)), net.tensor("b", values.transpose(0, 2, 1).transpose(order).shape), 0
        y = net.tensor("y", net.tensors[b].shape)
        net.add("TRANSPOSE", [x, net.constant("first", np.array([0, 2, 1], np.int32))], [a])
        net.add("TRANSPOSE", [a, net.constant("second", np.array(order, np.int32))], [b])
        net.add("ABS", [b], [y])
        _, path, _ = rewritten(net, [x], [y], tmp_path)
        assert kinds(path) == (["ABS"] if wanted[0] == "RESHAPE" else wanted)
        np.testing.assert_array_equal(run(path, values), values.transpose(0, 2, 1).transpose(order))


def test_tensors_that_nothing_reads_take_no_arena(tmp_path: Path) -> None:
    pytest.importorskip("tflite_micro")
    net = Net()
    net.tensor("left over", (1, 64, 64))
    x, y = net.tensor("x", (1, 8), "int8", scale=0.1), net.tensor("y", (1, 8), "int8", scale=0.1)
    net.add("ABS", [x], [y])
    net.signature({"given": x}, {"made": y})
    path = net.write(tmp_path / "net.tflite", [x], [y])
    values = np.arange(-4, 4, dtype=np.int8)[None]
    wanted, took = run(path, values), tflm.arena_bytes(path, tflite.open(str(path), {}).signature)
    assert took > 64 * 64 * 4, "TFLM gives them places"
    assert tflite_tidy.drop_unread(path) == 1 and tflite_tidy.drop_unread(path) == 0
    assert tflm.arena_bytes(path, tflite.open(str(path), {}).signature) < 2048
    np.testing.assert_array_equal(run(path, values), wanted)


@pytest.mark.parametrize(("stride", "wide", "padded"), [(2, 34, True), (2, 34, False), (3, 12, False), (2, 33, True), (1, 8, False)])
def test_columns_that_a_strided_row_does_not_reach_are_left_out(tmp_path: Path, stride: int, wide: int, padded: bool) -> None:
    rng, net, filters = np.random.default_rng(3), Net(), 2 if stride == 3 else 3
    made, quantized = (wide - filters) // stride + 1, {"scale": 0.05, "zero_point": -3}
    x = net.tensor("x", (1, 1, wide - 2 if padded else wide, 4), "int8", **quantized)
    a = net.tensor("a", (1, 1, wide, 4), "int8", **quantized) if padded else x
    if padded:
        net.add("PAD", [x, net.constant("pads", np.array([[0, 0], [0, 0], [1, 1], [0, 0]], np.int32))], [a], version=2)
    scales = np.linspace(0.004, 0.02, 5)
    weights = net.constant("w", rng.integers(-127, 128, (5, 1, filters, 4)).astype(np.int8), scale=scales)
    bias = net.constant("b", np.arange(5, dtype=np.int32), scale=0.05 * scales)
    y = net.tensor("y", (1, 1, made, 5), "int8", scale=0.1)
    conv = {"padding": 1, "strideH": 1, "strideW": stride, "dilationHFactor": 1, "dilationWFactor": 1}
    net.add("CONV_2D", [a, weights, bias], [y], version=3, table="Conv2DOptions", fusedActivationFunction=0, **conv)
    path = net.write(tmp_path / "net.tflite", [x], [y])
    values = rng.integers(-128, 128, net.tensors[x].shape).astype(np.int8)
    wanted, left = run(path, values), wide - ((made - 1) * stride + filters)
    assert tflite_columns.drop_unreached(path) == (("y",) if left else ())
    assert kinds(path) == (["PAD", "CONV_2D"] if padded else ["SLICE", "CONV_2D"] if left else ["CONV_2D"])
    read = tflite.graph(path)
    assert read.tensors[read.operators[-1].inputs[0]].shape[2] == wide - left
    np.testing.assert_array_equal(run(path, values), wanted)
