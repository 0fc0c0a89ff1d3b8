"""Loops of a known number of rounds: written out they compute the same, and what values decide stays a loop."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit import formats
from edgekit.formats import onnx as onnx_format
from edgekit.legalize import onnx_loops, onnx_prepare

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,4] x, bool more) => (float[1,4] y, float[3,1,4] steps)
<int64 rounds = {3}, bool yes = {1}, float scale = {0.5}> {
  y, steps = Loop <body = step (int64 i, bool going, float[1,4] state) => (bool goes, float[1,4] next, float[1,4] seen) {
    goes = Identity(%s)
    number = Cast<to = 1>(i)
    scaled = Mul(state, scale)
    next = Add(scaled, number)
    seen = Neg(next)
  }> (rounds, %s, x)
}
"""


def loops(proto: object) -> int:
    return sum(node.op_type == "Loop" for node in proto.graph.node)  # type: ignore[attr-defined]  # onnx is not typed here


@pytest.mark.parametrize(("goes", "first"), [("going", "yes"), ("yes", "yes"), ("going", "")])
def test_a_loop_of_known_length_is_written_out(goes: str, first: str) -> None:
    source = onnx_format.from_proto(onnx.parser.parse_model(LOOP % (goes, first)), "net", "0", {})
    made = onnx_prepare.prepare(source)
    assert loops(made.model.handle) == 0
    assert any("loops that run a known number of times" in notice for notice in made.notices)
    state = x = np.random.RandomState(0).randn(1, 4).astype(np.float32)
    rows = []
    for number in range(3):
        state = state * np.float32(0.5) + number
        rows.append(-state)
    present = {spec.name for spec in made.model.signature.inputs}
    feeds = {made.inputs[name]: value for name, value in {"x": x, "more": np.array(True)}.items() if made.inputs[name] in present}
    found = onnx_format.session(made.model).run(feeds)
    np.testing.assert_allclose(found[made.outputs["y"]], state, rtol=1e-6)
    np.testing.assert_allclose(found[made.outputs["steps"]], np.stack(rows), rtol=1e-6)


def test_constants_of_the_body_are_stored_once() -> None:
    text = (LOOP % ("yes", "yes")).replace("Mul(state, scale)", "Mul(state, weight)")
    proto = onnx.parser.parse_model(text.replace("float[1,4] seen) {", "float[1,4] seen) <float[1,4] weight = {2, 3, 4, 5}> {"))
    made, count = onnx_loops.unrolled(proto)
    assert count == 1
    stored = [t for t in made.graph.initializer if list(t.dims) == [1, 4]]
    assert len(stored) == 1
    source = onnx_format.from_proto(made, "net", "0", {})
    x = np.ones((1, 4), np.float32)
    state = x
    for number in range(3):
        state = state * np.array([2, 3, 4, 5], np.float32) + number
    np.testing.assert_allclose(formats.session(source).run({"x": x, "more": np.array(True)})["y"], state)


@pytest.mark.parametrize("change", ["more", "many"])
def test_a_loop_that_values_end_or_that_is_long_stays_one(change: str) -> None:
    text = LOOP % ("going", "more" if change == "more" else "yes")
    text = text.replace("rounds = {3}", "rounds = {65}").replace("float[3,1,4]", "float[n,1,4]") if change == "many" else text
    proto = onnx.parser.parse_model(text)
    made, count = onnx_loops.unrolled(proto)
    assert count == 0 and made is proto and loops(made) == 1


def test_the_formats_own_run_agrees() -> None:
    source = onnx_format.from_proto(onnx.parser.parse_model(LOOP % ("yes", "yes")), "net", "0", {})
    x = np.ones((1, 4), np.float32)
    assert formats.session(source).run({"x": x, "more": np.array(True)})["steps"].shape == (3, 1, 4)
