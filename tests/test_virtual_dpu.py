"""The integer reference against exact rational arithmetic, hand-computed cases and ONNX Runtime."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import ConversionError, UsageError
from edgekit.virtual.dpu import arithmetic, reader
from tests.dpu_models import Builder, by_onnxruntime, exact


@pytest.mark.parametrize("rounding", arithmetic.ROUNDINGS)
@given(values=st.lists(st.integers(-(2**29), 2**29), min_size=1, max_size=20), shift=st.integers(-3, 20))
def test_a_shift_rounds_as_its_rule_says(rounding: Any, values: list[int], shift: int) -> None:
    got = arithmetic.requantize(np.array(values, np.int32), shift, rounding)
    wanted = [max(-128, min(127, exact(Fraction(v) / Fraction(2) ** shift, rounding))) for v in values]
    assert got.tolist() == wanted


@pytest.mark.parametrize(
    ("rounding", "wanted"),
    [
        ("half_even", [-2, -2, 0, 0, 2, 2]),
        ("half_up", [-2, -1, 0, 1, 2, 3]),
        ("half_down", [-3, -2, -1, 0, 1, 2]),
        ("std_round", [-3, -2, -1, 1, 2, 3]),
    ],
)
def test_halves(rounding: Any, wanted: list[int]) -> None:
    assert arithmetic.requantize(np.array([-5, -3, -1, 1, 3, 5]), 1, rounding).tolist() == wanted


def test_saturation_on_both_sides_and_when_shifting_left() -> None:
    assert arithmetic.requantize(np.array([10**6, -(10**6), 255, 254]), 1, "half_up").tolist() == [127, -128, 127, 127]
    assert arithmetic.requantize(np.array([40, -40, 3]), -2, "half_up").tolist() == [127, -128, 12]


@pytest.mark.parametrize(("scale", "wanted"), [(1.0, 0), (0.125, 3), (8.0, -3), (0.1, None), (0.0, None), (float("inf"), None), (-0.5, None)])
def test_positions(scale: float, wanted: int | None) -> None:
    assert arithmetic.position(scale) == wanted


def _image(rng: Any, shape: tuple[int, ...] = (1, 4, 8, 8)) -> Any:
    return (rng.randint(-128, 128, shape) / 16).astype(np.float32)


def _conv(rng: Any, build: Builder, act: str, *, groups: int = 1, stride: int = 1, dilation: int = 1) -> tuple[Any, dict[str, Any]]:
    x = build.input("x", (1, 4, 8, 8), 4)
    w = build.weight("w", rng.randint(-128, 128, (4 if groups > 1 else 6, 4 // groups, 3, 3)), 7)
    b = build.weight("b", rng.randint(-128, 128, 4 if groups > 1 else 6), 5)
    pads = [dilation] * 4
    y = build.node("Conv", [x, w, b], "y", group=groups, strides=[stride] * 2, dilations=[dilation] * 2, pads=pads)
    y = _activation(build, y, act)
    return build.model(build.quantized(y, 2)), {"x": _image(rng)}


def _activation(build: Builder, y: str, act: str) -> str:
    if act == "relu6":
        return build.node("Clip", [y, build.constant("zero", np.float32(0)), build.constant("six", np.float32(6))], "act")
    if act == "leaky":
        return build.node("LeakyRelu", [y], "act", alpha=26 / 256)
    return build.node("Relu", [y], "act") if act == "relu" else y


@pytest.mark.parametrize("act", ["", "relu", "relu6", "leaky"])
@pytest.mark.parametrize(("groups", "stride", "dilation"), [(1, 1, 1), (1, 2, 1), (4, 1, 1), (4, 2, 1), (2, 1, 1), (1, 1, 2)])
def test_convolutions_equal_onnx_runtime(act: str, groups: int, stride: int, dilation: int) -> None:
    model, feeds = _conv(np.random.RandomState(0), Builder(), act, groups=groups, stride=stride, dilation=dilation)
    _equal(model, feeds)


def _equal(model: Any, feeds: dict[str, Any]) -> None:
    program = reader.read(model)
    got = next(iter(program.run(feeds).values()))
    wanted = by_onnxruntime(model, feeds)[0]
    assert wanted.std() > 0
    np.testing.assert_array_equal(got, wanted)
    assert {step.place for step in program.steps} <= {"edge", "dpu"}


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(transposed: int) -> None:
    rng, build = np.random.RandomState(1), Builder()
    x = build.input("x", (3, 20), 4)
    w = build.weight("w", rng.randint(-128, 128, (5, 20) if transposed else (20, 5)), 9)
    b = build.weight("b", rng.randint(-128, 128, 5), 14)  # finer than the accumulator: the accumulator shifts left
    y = build.node("Gemm", [x, w, b], "y", transB=transposed)
    _equal(build.model(build.quantized(y, 4)), {"x": _image(rng, (3, 20))})


def test_transposed_convolution() -> None:
    rng, build = np.random.RandomState(2), Builder()
    x, w = build.input("x", (1, 4, 5, 6), 4), build.weight("w", rng.randint(-128, 128, (4, 3, 3, 3)), 8)
    y = build.node("ConvTranspose", [x, w], "y", strides=[2, 2], pads=[1, 1, 0, 0], output_padding=[0, 1])
    _equal(build.model(build.quantized(y, 3)), {"x": _image(rng, (1, 4, 5, 6))})


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Concat"])
def test_two_inputs_of_unlike_positions(kind: str) -> None:
    rng, build = np.random.RandomState(3), Builder()
    x, z = build.input("x", (1, 4, 8, 8), 4), build.input("z", (1, 4, 8, 8), 6)
    y = build.node(kind, [x, z], "y", **({"axis": 1} if kind == "Concat" else {}))
    _equal(build.model(build.quantized(y, 3)), {"x": _image(rng), "z": _image(rng) / 3})


@pytest.mark.parametrize("grid", ["half_pixel", "asymmetric"])
def test_bilinear_by_two(grid: str) -> None:
    rng, build = np.random.RandomState(4), Builder()
    x = build.input("x", (1, 4, 5, 6), 4)
    y = build.node(
        "Resize", [x, "", build.constant("k", np.array([1, 1, 2, 2], np.float32))], "y", mode="linear", coordinate_transformation_mode=grid
    )
    _equal(build.model(build.quantized(y, 4)), {"x": _image(rng, (1, 4, 5, 6))})


@pytest.mark.parametrize(
    ("kind", "attributes", "constants"),
    [
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, []),
        ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}, []),
        ("GlobalAveragePool", {}, []),
        ("Relu", {}, []),
        (
            "Resize",
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
            ["", np.array([1, 1, 2, 2], np.float32)],
        ),
        ("Pad", {}, [np.array([0, 0, 1, 2, 0, 0, 0, 1])]),
        ("Reshape", {}, [np.array([1, -1])]),
        ("Flatten", {}, []),
        ("Transpose", {"perm": [0, 2, 3, 1]}, []),
        ("Slice", {}, [np.array([1]), np.array([7]), np.array([2]), np.array([2])]),
        ("Unsqueeze", {}, [np.array([0])]),
    ],
)
def test_operators_of_one_input(kind: str, attributes: dict[str, Any], constants: list[Any]) -> None:
    rng, build = np.random.RandomState(5), Builder()
    x = build.input("x", (1, 4, 8, 8), 4)
    more = [c if isinstance(c, str) else build.constant(f"c{i}", c) for i, c in enumerate(constants)]
    y = build.node(kind, [x, *more], "y", **attributes)
    _equal(build.model(build.quantized(y, 3)), {"x": _image(rng)})


@pytest.mark.parametrize(("size", "factor", "k", "bits"), [(3, 0.984375, 7, 6), (5, 0.9765625, 10, 8), (7, 1.0048828125, 21, 10)])
def test_average_pools_are_sums_times_a_fraction(size: int, factor: float, k: int, bits: int) -> None:
    rng, build = np.random.RandomState(6), Builder()
    x = build.input("x", (1, 3, size, size), 4)
    y = build.node("GlobalAveragePool", [x], "y")
    z = build.node("Mul", [y, build.constant("f", np.float32(factor))], "z")
    values = _image(rng, (1, 3, size, size))
    got = reader.read(build.model(build.quantized(z, 5)), "half_up").run({"x": values})["z_dq"]
    sums = (values * 16).astype(int).sum(axis=(2, 3)).ravel()
    wanted = [max(-128, min(127, exact(Fraction(int(s) * k, 2 ** (bits + 4 - 5)), "half_up"))) for s in sums]
    assert (got.ravel() * 32).tolist() == wanted


def test_hard_sigmoid_is_2731_over_2_to_14() -> None:
    build = Builder()
    x = build.input("x", (1, 256), 4)
    y = build.node("HardSigmoid", [x], "y", alpha=1 / 6, beta=0.5)
    z = build.node("Mul", [y, build.constant("f", np.float32(1.0001220703125))], "z")
    stored = np.arange(-128, 128)
    got = reader.read(build.model(build.quantized(z, 7)), "half_up").run({"x": (stored / 16).astype(np.float32)[None]})["z_dq"]
    wanted = [min(127, exact(Fraction(min(max(int(q) + 48, 0), 96) * 2731, 2 ** (14 + 4 - 7)), "half_up")) for q in stored]
    assert (got.ravel() * 128).tolist() == wanted


def _refusal(model: Any, match: str, **options: Any) -> None:
    with pytest.raises(ConversionError, match=match):
        reader.read(model, **options)


def test_a_scale_that_is_no_power_of_two_is_named() -> None:
    build = Builder()
    build.input("x", (1, 4), 4)
    y = build.node("Relu", ["x_dq"], "y")
    _refusal(build.model(build.quantized(y, 0, scale=0.1)), r"y_q: the scale 0.1\d* is not a power of two")


def test_a_float_only_operator_is_named() -> None:
    build = Builder()
    y = build.node("Softmax", [build.input("x", (1, 4), 4)], "soft")
    _refusal(build.model(build.quantized(y, 7)), "soft: Softmax is not an operator of the accelerator")


def test_an_operator_without_quantizers_is_named() -> None:
    build = Builder()
    y = build.node("Add", [build.input("x", (1, 4), 4), "x_dq"], "sum")
    _refusal(build.model(build.node("Relu", [build.node("Add", [y, "x_dq"], "twice")], "z")), "twice: Add reads sum in float")


def test_a_wrong_opset_and_a_dynamic_shape() -> None:
    build = Builder()
    model = build.model(build.quantized(build.node("Relu", [build.input("x", (1, 4), 4)], "y"), 4))
    open_shape = onnx.ModelProto()
    open_shape.CopyFrom(model)
    open_shape.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    _refusal(open_shape, "x: a dynamic shape")
    model.opset_import[0].version = 11
    _refusal(model, "opset 11")


def test_an_average_that_is_no_shift_and_a_slope_that_is_no_fraction() -> None:
    build = Builder()
    y = build.node("GlobalAveragePool", [build.input("x", (1, 2, 3, 3), 4)], "mean")
    _refusal(build.model(build.quantized(y, 4)), "mean: GlobalAveragePool divides by 9")
    build = Builder()
    y = build.node("LeakyRelu", [build.input("x", (1, 4), 4)], "leak", alpha=0.1)
    _refusal(build.model(build.quantized(y, 4)), "leak: LeakyRelu with slope 0.1")


def test_an_unknown_rounding() -> None:
    build = Builder()
    model = build.model(build.quantized(build.node("Relu", [build.input("x", (1, 4), 4)], "y"), 4))
    with pytest.raises(UsageError, match="unknown rounding 'half'"):
        reader.read(model, "half")
