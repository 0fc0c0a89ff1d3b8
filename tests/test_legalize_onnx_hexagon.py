"""Graphs as exporters write them, on the HTP simulator: rewritten, taken whole, and as right as 16-bit activations are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import formats, target
from edgekit.backends import Candidate, Context, qnn
from edgekit.formats import onnx as onnx_format
from edgekit.qdq import protos

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.slow

F = np.float32
RNG = np.random.default_rng(3)
W = (RNG.standard_normal((4, 4, 3, 3)) * 0.2).astype(F)
CHANNELS = {name: np.linspace(0.4, 1.6, 4).astype(F) for name in ("scale", "bias", "mean", "var")}
GRAPHS: dict[str, tuple[str, dict[str, Any]]] = {
    "convolution, batch norm and gelu, unfolded": (
        """c = Conv <pads = [1, 1, 1, 1]> (x, w) n = BatchNormalization (c, scale, bias, mean, var)
        d = Div (n, root) e = Erf (d) a = Add (e, one) h = Mul (n, half) y = Mul (h, a)""",
        {"w": W, "root": F(2**0.5), "one": F(1), "half": F(0.5), **CHANNELS},
    ),
    "space to depth through six dimensions": (
        "r = Reshape (x, six) t = Transpose <perm = [0, 1, 3, 5, 2, 4]> (r) s = Reshape (t, out) y = Relu (s)",
        {"six": np.array([1, 4, 4, 2, 4, 2]), "out": np.array([1, 16, 4, 4])},
    ),
    "layer norm written out": (
        """m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) q = Mul (d, d) v = ReduceMean <axes = [-1]> (q) w = Add (v, eps) s = Sqrt (w)
        n = Div (d, s) p = Mul (n, g) y = Add (p, b)""",
        {"eps": F(1e-5), "g": np.linspace(0.5, 2, 8).astype(F), "b": np.linspace(-1, 1, 8).astype(F)},
    ),
    "instance norm": ("y = InstanceNormalization (x, scale, bias)", CHANNELS),
    "softplus written out": ("e = Exp (x) a = Add (e, one) y = Log (a)", {"one": F(1)}),
    "logarithm of a narrow range": ("a = Abs (x) b = Add (a, one) y = Log (b)", {"one": F(1)}),
    "softmax of nearly equal values": ("s = Mul (x, small) y = Softmax (s)", {"small": F(0.003)}),
    "inverse of small values": ("a = Abs (x) b = Add (a, tenth) c = Mul (b, tenth) y = Reciprocal (c)", {"tenth": F(0.1)}),
    "nearest resize by other neighbors": (
        'y = Resize <coordinate_transformation_mode = "half_pixel", nearest_mode = "floor"> (x, , scales)', {"scales": np.array([1, 1, 2, 2], F)},
    ),
}  # fmt: skip


def model_of(body: str, values: dict[str, Any]) -> formats.Model:
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> net (float[1, 4, 8, 8] x) => (float y) {{ {body} }}')
    made.graph.output[0].type.tensor_type.ClearField("shape")
    for name, value in values.items():
        protos.set_constant(made, name, np.asarray(value))
    return onnx_format.from_proto(onnx.shape_inference.infer_shapes(made, data_prop=True), "net", "", {})


@pytest.mark.parametrize("name", GRAPHS)
def test_the_simulator_computes_what_the_source_does(name: str, tmp_path: Path) -> None:
    model = model_of(*GRAPHS[name])
    samples = [{"x": np.random.default_rng(seed).uniform(-2, 2, (1, 4, 8, 8)).astype(F)} for seed in range(4)]
    artifact = qnn.prepare(model, Context(target.load("hexagon-v75"), samples, tmp_path))(Candidate("a16w8", "nearest"))
    right, got = (session.run(samples[0])["y"] for session in (formats.session(model), qnn.emulate(artifact)))
    assert np.abs(right - got).max() <= 0.02 * np.abs(right).max()
