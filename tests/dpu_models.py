"""Small QDQ models with power-of-two scales, made by tests."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

OPSET = 17

NETWORK_SHAPE = (1, 3, 16, 16)


class Builder:
    """Adds operators between DequantizeLinear and QuantizeLinear."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.stored: list[Any] = []
        self.inputs: list[Any] = []

    def constant(self, name: str, array: Any) -> str:
        self.stored.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def input(self, name: str, shape: tuple[int, ...], position: int) -> str:
        """A float input, quantized and dequantized; the name of the dequantized tensor."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return self.quantized(name, position)

    def quantized(self, name: str, position: int, scale: float | None = None) -> str:
        step = self.constant(f"{name}_s", np.float32(2.0**-position if scale is None else scale))
        zero = self.constant(f"{name}_z", np.int8(0))
        self.node("QuantizeLinear", [name, step, zero], f"{name}_q")
        return self.node("DequantizeLinear", [f"{name}_q", step, zero], f"{name}_dq")

    def weight(self, name: str, stored: Any, position: int) -> str:
        array = self.constant(f"{name}_q", np.asarray(stored, np.int8))
        step, zero = self.constant(f"{name}_s", np.float32(2.0**-position)), self.constant(f"{name}_z", np.int8(0))
        return self.node("DequantizeLinear", [array, step, zero], name)

    def model(self, output: str, opset: int = OPSET) -> Any:
        ends = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "g", self.inputs, ends, self.stored)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        made = onnx.shape_inference.infer_shapes(made)
        shape = next(v for v in made.graph.output).type
        del made.graph.output[:]
        made.graph.output.append(helper.make_value_info(output, shape))
        return made


def by_onnxruntime(model: Any, feeds: dict[str, Any]) -> list[Any]:
    """What ONNX Runtime computes with every optimization off: float operators between the quantizers."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)  # type: ignore[no-any-return]


def network(path: Path) -> Path:
    """A float network: conv -> relu6 -> depthwise -> swish -> add -> concat -> mean -> dense -> softmax, random weights."""
    rng, nodes, stored = np.random.RandomState(0), [], []

    def const(name: str, array: Any) -> str:
        stored.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    c1 = node("Conv", ["x", const("w1", rng.randn(8, 3, 3, 3) / 3), const("b1", rng.randn(8))], "c1", pads=[1] * 4, strides=[2, 2])
    r1 = node("Clip", [c1, const("zero", 0.0), const("six", 6.0)], "r1")
    d1 = node("Conv", [r1, const("w2", rng.randn(8, 1, 3, 3) / 2)], "d1", pads=[1] * 4, group=8)
    s1 = node("HardSwish", [d1], "s1")
    a1 = node("Add", [s1, r1], "a1")
    l1 = node("LeakyRelu", [node("Conv", [a1, const("w3", rng.randn(8, 8, 1, 1) / 3)], "c3")], "l1", alpha=0.1)
    cat = node("Concat", [a1, l1], "cat", axis=1)
    up = node("Resize", [cat, "", const("k", [1, 1, 2, 2])], "up", mode="linear", coordinate_transformation_mode="half_pixel")
    pool = node("AveragePool", [up], "pool", kernel_shape=[3, 3], strides=[2, 2])
    mean = node("Flatten", [node("GlobalAveragePool", [pool], "mean")], "flat")
    node("Softmax", [node("Gemm", [mean, const("g", rng.randn(16, 5))], "scores")], "y", axis=1)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", NETWORK_SHAPE), ("y", (1, 5)), ("scores", (1, 5)))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def exact(value: Fraction, rounding: str) -> int:
    """A fraction rounded to a whole number by each rule's definition."""
    floor = math.floor(value)
    rest = value - floor
    if rest != Fraction(1, 2):
        return floor + (rest > Fraction(1, 2))
    up = {"half_up": True, "half_down": False, "std_round": value > 0, "half_even": floor % 2 == 1}[rounding]
    return floor + up
