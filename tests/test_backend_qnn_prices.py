"""What 16 bits add to a context binary, and which of them fit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgekit.backends.qnn import mixed, prices
from edgekit.qdq import protos, stream
from edgekit.qdq.sensitivity import Cost

onnx = pytest.importorskip("onnx")


def test_layers_with_groups_are_built_alone_once_a_form_and_in_each_width(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
    { a = Conv <group = 4, pads = [1, 1, 1, 1]> (x, w1)  b = Conv <group = 4, pads = [1, 1, 1, 1]> (a, w2)  y = Conv (b, w3) }"""
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name, shape in {"w1": (4, 1, 3, 3), "w2": (4, 1, 3, 3), "w3": (4, 4, 1, 1)}.items():
        protos.set_constant(model, name, rng.standard_normal(shape).astype(np.float32))
    model = protos.canonical(onnx.shape_inference.infer_shapes(model))
    sample = {"x": rng.standard_normal((1, 4, 8, 8)).astype(np.float32)}
    asked = []

    def size_of(proto) -> float:
        stored = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
        form = stored["x/zero"] == onnx.TensorProto.UINT16, stored["w1/stored"] == onnx.TensorProto.INT16
        asked.append((form, tuple(dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim)))
        return {(False, False): 1000, (True, False): 1700, (True, True): math.inf}[form]

    seen = stream.histograms(model, [sample], lambda *_: None)
    activations, weights = prices.prices(model, sample, seen, tmp_path, size_of)
    assert asked == [((wide, fine), (1, 4, 8, 8)) for wide, fine in ((False, False), (True, False), (True, True))]
    assert activations["w1"] == activations["w2"] == 700 < activations["w3"]
    assert weights == {"w3": 16}  # what is refused has no price


def test_as_much_is_widened_as_fits_beside_what_does_not():
    costs = {name: Cost(noise, 0, {}, frozenset((name,))) for name, noise in (("a", 8.0), ("b", 4.0), ("c", 2.0), ("d", 1.0))}
    bytes_of = {"a": 1, "b": 90, "c": 2, "d": 1}
    assert mixed.choose(costs, lambda names: 100 + sum(bytes_of[name] for name in names), 100) == {"a", "c", "d"}
    assert mixed.choose(costs, lambda names: math.inf if names & {"b", "c", "d"} else 100, 100) == {"a"}
