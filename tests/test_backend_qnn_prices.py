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
        zero = next(node.input[2] for node in proto.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "x")
        form = stored[zero] == onnx.TensorProto.UINT16, stored["w1/stored"] == onnx.TensorProto.INT16
        asked.append((form, tuple(dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim)))
        return {(False, False): 1000, (True, False): 1700, (True, True): math.inf}[form]

    seen = stream.histograms(model, [sample], lambda *_: None)
    activations, weights = prices.prices(model, sample, seen, tmp_path, size_of)
    assert asked == [((wide, fine), (1, 4, 8, 8)) for wide, fine in ((False, False), (True, False), (True, True))]
    assert activations["w1"] == activations["w2"] == 700 < activations["w3"]
    assert weights == {"w3": 16}  # what is refused has no price


PLAIN = 1_000_000


def test_as_much_is_widened_as_fits_beside_what_does_not():
    costs = {name: Cost(noise, 0, {}, frozenset((name,))) for name, noise in (("a", 8.0), ("b", 4.0), ("c", 2.0), ("d", 1.0))}
    bytes_of = {"a": 1, "b": 90, "c": 2, "d": 1}
    names = mixed.together(mixed.choose(costs, lambda names: PLAIN + 10_000 * sum(bytes_of[name] for name in names), PLAIN))
    assert names == {"a", "c", "d"}
    assert mixed.choose(costs, lambda names: math.inf if names & {"b", "c", "d"} else PLAIN, PLAIN) == (frozenset("a"),)


def test_a_small_binary_may_grow_by_a_few_pages_and_a_large_one_by_a_twentieth():
    assert mixed.most_bytes(400_000) == 400_000 + 8 * 4096
    assert mixed.most_bytes(6_000_000) == 6_300_000


@pytest.mark.parametrize(("most", "left"), [(5, "abcde"), (4, "abcd"), (2, "ab"), (1, ""), (0, "")])
def test_what_no_longer_fits_after_rounding_by_data_is_left_out_last_first(most, left):
    asked = []

    def fits(names: frozenset[str]) -> bool:
        asked.append(names)
        return len(names) <= most

    assert mixed.fitting(tuple(frozenset(name) for name in "abcde"), fits) == frozenset(left)
    assert len(asked) <= 4
