"""Rewrites before quantization keep what a network computes: constants folded into layers, channels scaled."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.backends.vitis import equalize, factors, fold, limits, observe
from edgekit.backends.vitis.net import Net, of_proto, to_proto, units
from tests.dpu_models import by_onnxruntime

SHAPE = (1, 4, 8, 8)


class Floats:
    """Adds float operators and constants."""

    def __init__(self, seed: int) -> None:
        self.rng, self.nodes, self.stored = np.random.RandomState(seed), list[Any](), list[Any]()

    def const(self, array: Any) -> str:
        name = f"c{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def node(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def conv(self, source: str, outputs: int, inputs: int, kernel: int, group: int = 1) -> str:
        weight = self.rng.randn(outputs, inputs // group, kernel, kernel) * np.exp(self.rng.randn(outputs, 1, 1, 1)) / kernel
        return self.node("Conv", [source, self.const(weight), self.const(self.rng.randn(outputs))], group=group, pads=[kernel // 2] * 4)

    def net(self, output: str) -> Net:
        ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE), helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "g", ends[:1], ends[1:], self.stored)
        return of_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def images(count: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.RandomState(seed)
    return [{"x": rng.randn(*SHAPE).astype(np.float32)} for _ in range(count)]


def computed(net: Net, sample: dict[str, Any]) -> Any:
    return by_onnxruntime(to_proto(net, net.nodes, net.constants), sample)[0]


def kinds(net: Net) -> list[str]:
    return [node.op_type for node in net.nodes]


def test_factors_and_offsets_go_into_the_layers_beside_them() -> None:
    build = Floats(0)
    y = build.node("Mul", [build.conv("x", 6, 4, 3), build.const(2.5)])
    y = build.node("Add", [y, build.const(build.rng.randn(1, 6, 1, 1))])
    y = build.node("Relu", [y])
    y = build.node("Mul", [build.const(0.3), y])
    y = build.node("Add", [y, build.const([0.7])])
    a, b = build.conv(y, 6, 6, 1), build.conv(y, 6, 6, 1, group=6)
    net = build.net(build.node("Sub", [a, b]))
    made = fold.fold(net)
    assert sorted(kinds(made)) == ["Conv", "Conv", "Conv", "Relu", "Sub"]
    for sample in images(3, 1):
        np.testing.assert_allclose(computed(made, sample), computed(net, sample), rtol=1e-4, atol=1e-4)


def test_an_offset_stays_where_zeros_are_padded_behind_it() -> None:
    build = Floats(1)
    y = build.node("Add", [build.node("Mul", ["x", build.const(0.5)]), build.const(0.25)])
    net = build.net(build.conv(y, 3, 4, 3))
    made = fold.fold(net)
    assert kinds(made) == ["Add", "Conv"]  # the factor went into the convolution
    for sample in images(3, 2):
        np.testing.assert_allclose(computed(made, sample), computed(net, sample), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_dense_layer_takes_them_too(transposed: int) -> None:
    build = Floats(2)
    flat = build.node("Flatten", [build.node("GlobalAveragePool", ["x"])])
    weight = build.rng.randn(5, 4) if transposed else build.rng.randn(4, 5)
    y = build.node("Gemm", [build.node("Mul", [flat, build.const(3.0)]), build.const(weight), build.const(build.rng.randn(5))], transB=transposed)
    net = build.net(build.node("Sub", [y, build.const(build.rng.randn(1, 5))]))
    made = fold.fold(net)
    assert kinds(made) == ["GlobalAveragePool", "Flatten", "Gemm"]
    for sample in images(3, 3):
        np.testing.assert_allclose(computed(made, sample), computed(net, sample), rtol=1e-4, atol=1e-4)


def test_another_slope_of_hard_sigmoid_becomes_the_dpus() -> None:
    build = Floats(3)
    net = build.net(build.node("HardSigmoid", [build.conv("x", 4, 4, 1)], alpha=0.2, beta=0.5))
    made = fold.fold(net)
    assert onnx.helper.get_attribute_value(made.nodes[-1].attribute[0]) == pytest.approx(1 / 6)
    for sample in images(3, 4):
        np.testing.assert_allclose(computed(made, sample), computed(net, sample), rtol=1e-4, atol=1e-5)


def inverted_residual(bound: float | None) -> Net:
    """Conv -> ReLU(6) -> depthwise -> ReLU(6) -> conv, added to its input, twice; channels of very unlike ranges."""
    build = Floats(5)
    y = build.conv("x", 4, 4, 1)
    for _ in range(2):
        inner = y
        for outputs, inputs, kernel, group in ((12, 4, 1, 1), (12, 12, 3, 12)):
            inner = build.conv(inner, outputs, inputs, kernel, group)
            inner = build.node("Relu", [inner]) if bound is None else build.node("Clip", [inner, build.const(0), build.const(bound)])
        y = build.node("Add", [y, build.conv(inner, 4, 12, 1)])
    return build.net(build.node("Softmax", [build.conv(y, 4, 4, 1)], axis=1))


@pytest.mark.parametrize("bound", [None, 6.0])
def test_scaled_channels_compute_the_same_within_what_samples_show(bound: float | None) -> None:
    net = inverted_residual(bound)
    found = units(net, limits.judge(limits.load("DPUCZDX8G_ISA1_B4096")))
    samples = images(6, 6)
    made = equalize.equalize(net, found, observe.observe(net, found, samples))
    assert len(made.saturated) == (0 if bound is None else 4)
    for sample in samples:
        np.testing.assert_allclose(computed(made.net, sample), computed(net, sample), rtol=1e-3, atol=1e-4)
    scaled = observe.observe(made.net, units(made.net, limits.judge(None)), samples)
    for name in made.saturated:
        assert scaled[name].largest.max() <= equalize.LEVEL
    for name, one in scaled.items():
        np.testing.assert_allclose(one.largest, made.seen[name].largest, rtol=1e-3, atol=1e-5)


def test_the_slopes_of_the_noise_are_those_of_finite_differences() -> None:
    from edgekit.backends.vitis import channels

    rng = np.random.RandomState(7)
    node = helper.make_node("Conv", ["a", "w", "b"], ["c"])
    layer = channels.Linear(node, "a", "c", rng.rand(5, 3) + 0.1, rng.rand(5, 3), 1, rng.randn(5))
    deep = channels.Linear(node, "c", "d", rng.rand(5) + 0.1, rng.rand(5), 9, rng.randn(5))
    tensors = [factors.Tensor("a", rng.rand(3) + 0.1, rng.rand(3)), factors.Tensor("c", rng.rand(5) + 0.1, rng.rand(5))]
    names = {"a": 3, "c": 5, "d": 5}
    problem = factors.Problem(
        [layer, deep],
        tensors,
        {name: rng.rand(width) for name, width in names.items()},
        {name: rng.rand(width) for name, width in names.items()},
        {name: name for name in names},
        {name: np.arange(width) for name, width in names.items()},
    )
    logs = {name: rng.randn(width) * 0.2 for name, width in names.items()}
    _, slopes = factors.noise(problem, logs)
    for name, width in names.items():
        for channel in range(width):
            ends = []
            for step in (-1e-4, 1e-4):
                moved = {**logs, name: logs[name] + step * (np.arange(width) == channel)}
                ends.append(factors.noise(problem, moved)[0])
            assert slopes[name][channel] == pytest.approx((ends[1] - ends[0]) / 2e-4, rel=1e-3, abs=1e-9)
