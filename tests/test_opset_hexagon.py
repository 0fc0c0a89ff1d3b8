"""Forms that Hexagon's HTP takes and computes otherwise are refused by name; the forms beside them are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgekit import opset
from edgekit.formats import _onnx_view
from edgekit.qdq import protos

onnx = pytest.importorskip("onnx")

F = np.float32
VALUES = {"k": F(2), "w": np.zeros((4, 2, 3, 3), F), "s": np.array([1, 1, 0.6, 0.6], F), "t": np.array([1, 1, 2, 2], F),
          "c": np.array([1, 2, 2, 2], F), "g": np.ones(8, F),
          "i": np.zeros((1, 1, 1, 1), np.int64), "u": np.zeros((1, 1, 1, 1), F), "n": np.ones((4, 1, 1), F),
          "one": np.ones((1, 3), F), "eight": np.ones((8, 3), F)}  # fmt: skip


def verdict(body: str, kind: str) -> str:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> net (float[1, 4, 8, 8] x) => (float y) {{ {body} }}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for name, value in VALUES.items():
        protos.set_constant(model, name, np.asarray(value))
    found: Any = next(v for v in opset.judge(_onnx_view.graph(model, 0), "hexagon") if v.type == kind)
    return str(found.reason)


@pytest.mark.parametrize(("kind", "body", "words", "beside"), [
    ("Resize", "y = Resize (x, , t)", "other neighbors", 'y = Resize <nearest_mode = "round_prefer_ceil"> (x, , t)'),
    ("Resize", 'y = Resize <mode = "linear"> (x, , s)', "the ratio of the sizes", 'y = Resize <mode = "linear"> (x, , t)'),
    ("Resize", 'y = Resize <nearest_mode = "round_prefer_ceil"> (x, , c)', "rows and columns only",
     'y = Resize <nearest_mode = "round_prefer_ceil"> (x, , t)'),
    ("AveragePool", "y = AveragePool <kernel_shape = [3, 3], ceil_mode = 1> (x)", "another count", "y = AveragePool <kernel_shape = [3, 3]> (x)"),
    ("AveragePool", "y = AveragePool <kernel_shape = [3, 3], pads = [2, 2, 2, 2]> (x)", "ends the simulator",
     "y = AveragePool <kernel_shape = [3, 3], pads = [2, 2, 2, 2], count_include_pad = 1> (x)"),
    ("LpPool", "y = LpPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)", "with padding", "y = LpPool <kernel_shape = [3, 3]> (x)"),
    ("LpPool", "y = LpPool <kernel_shape = [3, 3], p = 3> (x)", "p = 1 or 2", "y = LpPool <kernel_shape = [3, 3], p = 1> (x)"),
    ("ConvTranspose", "y = ConvTranspose <strides = [2, 2], output_padding = [1, 1]> (x, w)", "further than the kernel",
     "y = ConvTranspose <strides = [2, 2], output_padding = [1, 1], pads = [1, 1, 1, 1]> (x, w)"),
    ("Softmax", "a = Mul (x, k) r = Relu (a) y = Softmax (r)", "before the ReLU", "a = Mul (x, k) r = Sigmoid (a) y = Softmax (r)"),
    ("LayerNormalization", "y = LayerNormalization (x, g)", "no bias", "y = LayerNormalization (x, g, g)"),
    ("MatMul", "m = ReduceMean <axes = [3]> (x) y = MatMul (m, one)", "never ends", "y = MatMul (x, eight)"),
    ("AveragePool", "y = AveragePool <kernel_shape = [2, 2], dilations = [2, 2]> (x)", "dilated", "y = AveragePool <kernel_shape = [2, 2]> (x)"),
    ("MaxPool", "y = MaxPool <kernel_shape = [2, 2], dilations = [2, 2]> (x)", "dilated", "y = MaxPool <kernel_shape = [2, 2]> (x)"),
    ("RMSNormalization", "y = RMSNormalization <axis = 1> (x, g)", "the last one only", "y = RMSNormalization (x, g)"),
    ("LpNormalization", "y = LpNormalization <p = 1> (x)", "root of the squares", "y = LpNormalization (x)"),
    ("Max", "y = Max (x)", "takes two", "y = Max (x, k)"),
    ("PRelu", "y = PRelu (x, n)", "each channel", "y = PRelu (x, k)"),
])  # fmt: skip
def test_a_form_that_is_computed_otherwise_is_refused(kind: str, body: str, words: str, beside: str) -> None:
    assert words in verdict(body, kind)
    assert verdict(beside, kind) == ""


@pytest.mark.parametrize(("kind", "body"), [
    ("ScatterElements", "y = ScatterElements <axis = 1> (x, i, u)"), ("Reciprocal", "y = Reciprocal (x)"), ("Tan", "y = Tan (x)"),
])  # fmt: skip
def test_an_operator_that_is_wrong_in_every_form(kind: str, body: str) -> None:
    assert verdict(body, kind)


def test_a_graph_that_the_simulator_took_is_still_refused_where_it_computes_otherwise() -> None:
    from edgekit.opset import hexagon, table, view

    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { a = Erf (x) y = Tan (a) }')
    graph = _onnx_view.graph(model, 0)
    seen = view.make(graph, table.load("hexagon"))
    import msgspec

    erf, tan = (msgspec.structs.replace(o, attributes={"confirmed": True}) for o in graph.operators)
    assert hexagon.refusal(seen, erf) is None and hexagon.refusal(seen, tan)
