"""Loops of a known number of rounds: written out they compute the same, and what values decide stays a loop."""

from __future__ import annotations

from collections.abc import Callable

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


NEST = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,4] x) => (float[1,4] y, float[n,1,4] steps)
<int64 rounds = {%d}, int64 few = {%d}, bool yes = {1}, float scale = {0.5}> {
  y, steps = Loop <body = step (int64 i, bool going, float[1,4] state) => (bool goes, float[1,4] next, float[1,4] seen) {
    goes = Identity(going)
    one = Constant<value = int64 {1}>()
    times = %s
    number = Cast<to = 1>(i)
    inner, rows = Loop <body = second (int64 j, bool on, float[1,4] s) => (bool still, float[1,4] t, float[1,4] r) {
      still = Identity(on)
      jn = Cast<to = 1>(j)
      u = Mul(s, scale)
      v = Add(u, jn)
      t = Add(v, number)
      r = Neg(t)
    }> (times, yes, state)
    axes = Constant<value_ints = [0]>()
    total = ReduceSum<keepdims = 0>(rows, axes)
    next = Add(inner, total)
    seen = Neg(next)
  }> (rounds, yes, x)
}
"""


def nested_by_hand(x: np.ndarray, rounds: int, times: Callable[[int], int]) -> tuple[np.ndarray, np.ndarray]:
    state, steps = x, []
    for i in range(rounds):
        inner, total = state, np.zeros_like(state)
        for j in range(times(i)):
            inner = inner * np.float32(0.5) + j + i
            total = total - inner
        state = inner + total
        steps.append(-state)
    return state, np.stack(steps)


@pytest.mark.parametrize(("rounds", "few", "times", "count"), [(3, 2, "Identity(few)", 4), (3, 2, "Add(i, one)", 4), (8, 8, "Identity(few)", 9)])
def test_loops_in_a_loop_are_written_out_as_well(rounds: int, few: int, times: str, count: int) -> None:
    source = onnx_format.from_proto(onnx.parser.parse_model(NEST % (rounds, few, times)), "net", "0", {})
    made = onnx_prepare.prepare(source)
    assert loops(made.model.handle) == 0
    assert f"{count} loops that run a known number of times are written out" in made.notices
    x = np.random.RandomState(0).randn(1, 4).astype(np.float32)
    wanted = nested_by_hand(x, rounds, (lambda i: i + 1) if "Add" in times else (lambda i: few))
    found = onnx_format.session(made.model).run({made.inputs["x"]: x})
    for name, value in zip(("y", "steps"), wanted, strict=True):
        np.testing.assert_allclose(found[made.outputs[name]], value, rtol=1e-5)


def test_loops_that_multiply_to_too_many_rounds_stay_as_they_are() -> None:
    proto = onnx.parser.parse_model(NEST % (13, 5, "Identity(few)"))
    made, count = onnx_loops.unrolled(proto)
    assert (count, len(made.graph.node)) == (0, 1)


def test_the_formats_own_run_agrees() -> None:
    source = onnx_format.from_proto(onnx.parser.parse_model(LOOP % ("yes", "yes")), "net", "0", {})
    x = np.ones((1, 4), np.float32)
    assert formats.session(source).run({"x": x, "more": np.array(True)})["steps"].shape == (3, 1, 4)
