"""Whether a desktop's reference kernels give TFLM's bytes, held against nets of which that is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")
pytest.importorskip("tflite_micro")

from edgekit.formats import tflite, tflm, tflm_agreement
from tests.tflite_build import Net

DEPTH = 64


def layer(path: Path, kind: str, *, scales: int = DEPTH, dtype: str = "int8") -> Path:
    """The same integers as a dense layer and as a 1 x 1 convolution."""
    rng, net, maps = np.random.default_rng(3), Net(), kind == "CONV_2D"
    shape, scale = (1, 1, 1, DEPTH) if maps else (1, DEPTH), np.linspace(0.004, 0.02, scales)
    x, y = (net.tensor(name, shape, dtype, scale=size) for name, size in (("x", 0.05), ("y", 0.7)))
    values = rng.integers(-127, 128, (DEPTH, DEPTH)).astype(np.int8)
    weights = net.constant("w", values.reshape(DEPTH, 1, 1, DEPTH) if maps else values, scale=scale)
    bias = net.constant("b", rng.integers(-99, 99, DEPTH).astype(np.int64 if dtype == "int16" else np.int32), scale=0.05 * scale)
    options = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1} if maps else {}
    table = "Conv2DOptions" if maps else "FullyConnectedOptions"
    net.add(kind, [x, weights, bias], [y], version=3 if maps else 4, table=table, fusedActivationFunction=0, **options)
    return net.write(path, [x], [y])


@pytest.mark.parametrize(
    ("kind", "scales", "dtype", "equal"),
    [
        ("FULLY_CONNECTED", DEPTH, "int8", False),
        ("FULLY_CONNECTED", 1, "int8", True),
        ("FULLY_CONNECTED", 1, "int16", False),
        ("CONV_2D", DEPTH, "int8", True),
        ("CONV_2D", DEPTH, "int16", True),
    ],
)
def test_where_they_differ_is_said_with_the_operator(tmp_path: Path, kind: str, scales: int, dtype: str, equal: bool) -> None:
    path = layer(tmp_path / "net.tflite", kind, scales=scales, dtype=dtype)
    signature = tflite.open(str(path), {}).signature
    samples = [{"x": np.linspace(-3, 3, DEPTH, dtype=np.float32).reshape(signature.inputs[0].shape)}]
    found = tflm_agreement.compare(path, signature, samples, 60)
    assert (found.inputs, found.random, found.values) == (61, 60, 61 * DEPTH)
    assert (found.apart == 0) == equal and found.steps <= 1
    said = found.said(tflite.graph(path))
    assert ("to the byte on 61 inputs" in said) == equal and ("FULLY_CONNECTED: LiteRT's multiply" in said) != equal


def test_the_default_arena_holds_a_large_image_under_few_weights(tmp_path: Path) -> None:
    net = Net()
    tensors = [net.tensor(name, (1, 128, 128, 8), "int8", scale=0.1) for name in ("x", "y")]
    net.add("ABS", tensors[:1], tensors[1:])
    path = net.write(tmp_path / "net.tflite", tensors[:1], tensors[1:])
    assert 10 * path.stat().st_size < 2 * 128 * 128 * 8, "what TFLM's own package would take"
    signature = tflite.open(str(path), {}).signature
    made = tflm.Interpreter(path, signature).run({"x": np.full((1, 128, 128, 8), -7, np.int8)})["y"]
    assert (made == 7).all()
    assert 2 * 128 * 128 * 8 <= tflm.arena_bytes(path, signature) < 2 * 128 * 128 * 8 + 4096
