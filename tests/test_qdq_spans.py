"""Grids that Hexagon's 16-bit kernels need wider than the values that were seen."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit.qdq import protos, spans
from edgekit.quantize.ranges import histogram

onnx = pytest.importorskip("onnx")


def widths(body: str, **reach: tuple[float, float]) -> dict[str, float]:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[2, 4] x) => (float[2, 4] y) {{ {body} }}')
    protos.set_constant(model, "k", np.float32(0.01))
    seen = {name: histogram(np.linspace(*ends, 50), *ends) for name, ends in reach.items()}
    return {name: found.high - found.low for name, found in spans.widened(model, seen).items()}


def test_a_narrow_logarithm_is_widened_and_a_wide_one_kept() -> None:
    assert widths("y = Log (x)", x=(1, 2), y=(0, 0.7)) == {"x": 2, "y": pytest.approx(4.01)}
    assert widths("y = Log (x)", x=(0.01, 9), y=(-4.6, 2.2))["y"] == pytest.approx(6.8)


def test_what_goes_into_a_softmax_is_widened_up_to_where_its_grid_comes_from() -> None:
    found = widths("s = Mul (x, k) t = Transpose <perm = [1, 0]> (s) y = Softmax (t)", x=(-1, 1), s=(-0.01, 0.01), t=(-0.01, 0.01), y=(0, 1))
    assert found == {"x": pytest.approx(50), "s": pytest.approx(0.5), "t": pytest.approx(0.5), "y": 1}
    assert widths("s = Sigmoid (x) y = Softmax (s)", x=(-0.1, 0.1), s=(0, 0.6), y=(0, 1)) == {"x": pytest.approx(0.2), "s": 0.6, "y": 1}


def test_the_side_with_the_larger_values_is_extended() -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Softmax (x) }')
    found = spans.widened(model, {"x": histogram(np.array([-0.1, 0.0]), -0.1, 0.0)})["x"]
    assert (found.low, found.high) == (pytest.approx(-0.5), 0.0)
