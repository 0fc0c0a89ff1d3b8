"""What makes a build faithful: positions judged at the outputs, channels scaled through gates and offsets, layouts, joins and tails."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgekit.backends.vitis import calibrate, equalize, forms, joins, layout, limits, losses, observe, positions, search, twins
from edgekit.backends.vitis.net import BEHIND, Net, Unit, to_proto, units
from tests.test_vitis_rewrites import Floats, computed, images, kinds


def grouped(net: Net) -> tuple[Unit, ...]:
    return units(net, limits.judge(None))


def same(one: Net, other: Net, seed: int) -> None:
    for sample in images(3, seed):
        np.testing.assert_allclose(computed(one, sample), computed(other, sample), rtol=1e-4, atol=1e-4)


def swish(build: Floats, source: str) -> str:
    """x * HardSigmoid(x) with the DPU's factor."""
    gate = build.node("Mul", [build.node("HardSigmoid", [source], alpha=1 / 6, beta=0.5), build.const(forms.HARD_SIGMOID_FACTOR)])
    return build.node("Mul", [source, gate])


def test_element_wise_operators_leave_the_layout_of_their_transpositions() -> None:
    build = Floats(0)
    last = build.node("Transpose", [build.conv("x", 6, 4, 3)], perm=[0, 2, 3, 1])
    turned = build.node("HardSwish", [build.node("Add", [last, build.const(build.rng.randn(6))])])
    gate = build.node("Reshape", [build.node("Sigmoid", [build.node("GlobalAveragePool", [build.conv("x", 6, 4, 1)])]), "shape"])
    build.stored.append(_int64("shape", [1, 1, 1, 6]))
    back = build.node("Transpose", [build.node("Mul", [turned, gate])], perm=[0, 3, 1, 2])
    net = build.net(build.conv(back, 3, 6, 1))
    made = layout.channels_first(net)
    assert "Transpose" not in kinds(made)
    same(made, net, 1)


def test_a_tensor_that_is_read_channels_last_keeps_its_transposition() -> None:
    build = Floats(1)
    last = build.node("Relu", [build.node("Transpose", [build.conv("x", 6, 4, 3)], perm=[0, 2, 3, 1])])
    net = build.net(build.node("MatMul", [last, build.const(build.rng.randn(6, 2))]))
    made = layout.channels_first(net)
    assert kinds(made) == ["Conv", "Relu", "Transpose", "MatMul"]
    same(made, net, 2)


def _int64(name: str, values: list[int]) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.array(values, np.int64), name)


def uneven(seed: int) -> Net:
    """Convolution, hard swish, offset, convolution; the first one's channels differ widely in range."""
    build = Floats(seed)
    scale = np.array([0.05, 0.3, 1, 2, 8, 20]).reshape(-1, 1, 1, 1)
    first = build.node("Conv", ["x", build.const(build.rng.randn(6, 4, 1, 1) * scale), build.const(build.rng.randn(6))])
    return build.net(build.conv(build.node("Add", [swish(build, first), build.const(0.25)]), 4, 6, 3))


def test_a_copied_layer_lets_a_hard_swish_be_scaled() -> None:
    net = uneven(3)
    found = twins.find(net, grouped(net))
    assert [one.source for one in found] == [net.nodes[0].output[0]]
    doubled = twins.double(net, found)
    assert kinds(doubled).count("Conv") == kinds(net).count("Conv") + 1
    same(doubled, net, 4)
    even = equalize.equalize(doubled, grouped(doubled), observe.observe(doubled, grouped(doubled), images(8, 5)))
    same(even.net, net, 6)
    source, product = found[0].source, found[0].product.output[0]
    plain = observe.observe(net, grouped(net), images(8, 5))
    for name in (source, product):  # the channels' reach is closer together than it was
        assert np.ptp(np.log(even.seen[name].largest)) < np.ptp(np.log(plain[name].largest)) / 1.5
    gate_input = twins.copy_of(source)
    np.testing.assert_allclose(even.seen[gate_input].largest, plain[source].largest, rtol=1e-5)


def test_layers_are_copied_only_where_they_bring_noise_and_within_the_room() -> None:
    net = uneven(7)
    found = twins.find(net, grouped(net))
    quiet = dict.fromkeys((one.source for one in found), 0.001)
    assert twins.worthwhile(net, found, quiet | {"other": 1.0}) == []
    small = [dataclasses.replace(one, macs=10**9) for one in found]
    assert twins.worthwhile(net, small, {found[0].source: 1.0}) == []
    assert twins.worthwhile(net, [dataclasses.replace(one, macs=1) for one in found], {found[0].source: 1.0})


def tailed(weight: float) -> tuple[Net, list[dict[str, Any]]]:
    """A tensor of mostly small values with few large ones in one channel, of which `weight` reaches the output."""
    build = Floats(8)
    big, small = np.eye(4)[:, :, None, None], np.array([[1, 1, 1, weight]])[:, :, None, None]
    net = build.net(build.node("Conv", [build.node("Conv", ["x", build.const(big)]), build.const(small)]))
    samples = images(8, 9)
    for number, sample in enumerate(samples):
        sample["x"][:, :3] *= 0.1
        sample["x"][:, 3] = np.where(np.arange(64).reshape(8, 8) == number, 60.0, 0.0)
    return net, samples


def test_a_tail_that_does_not_reach_the_output_is_clipped() -> None:
    net, samples = tailed(0.0)
    seen = observe.observe(net, grouped(net), samples)
    start = positions.choose(net, grouped(net), seen, {})
    name = net.nodes[0].output[0]
    found, costs = search.refine(net, grouped(net), samples, start, ())
    assert found[name] > start[name]
    assert costs[name] < search.costs(net, grouped(net), samples, start)[name]
    held, _ = search.refine(net, grouped(net), samples, start, [name])
    assert held[name] == start[name]


def test_a_tail_that_matters_stays() -> None:
    net, samples = tailed(1.0)
    start = positions.choose(net, grouped(net), observe.observe(net, grouped(net), samples), {})
    found, _ = search.refine(net, grouped(net), samples, start, ())
    name = net.nodes[0].output[0]
    assert 60 * 2.0 ** found[name] <= 128


def joined(scale: float, *, layer: bool) -> Net:
    build = Floats(10)
    parts = [build.node("Conv", ["x", build.const(build.rng.randn(4, 4, 1, 1) * s)]) for s in (scale, 1.0)]
    both = build.node("Concat", parts, axis=1)
    return build.net(build.conv(both, 3, 8, 1) if layer else both)


def test_a_join_of_unequal_ranges_stays_in_float() -> None:
    for scale, layer, kept in ((600.0, False, False), (600.0, True, True), (2.0, False, True)):
        net = joined(scale, layer=layer)
        found = joins.keep_apart(net, grouped(net), observe.observe(net, grouped(net), images(4, 11)))
        join = next(unit for unit in found if unit.head.op_type == "Concat")
        assert join.on_dpu == kept
        if not kept:
            assert "steps of 127" in join.reason
            assert join.suggestion


def test_scores_beside_boxes_keep_their_bits() -> None:
    net, samples = joined(600.0, layer=False), images(8, 12)
    made = calibrate.calibrate(net, grouped, samples, "second-order", "half_even", lambda *_: None)
    join = next(unit for unit in made.units if unit.head.op_type == "Concat")
    scores = join.head.input[1]
    reach = max(float(np.abs(computed(_output(net, scores), sample)).max()) for sample in samples)
    assert reach * 2.0 ** made.positions[scores] > 60
    assert join.output not in made.positions


def _output(net: Net, name: str) -> Net:
    from onnx import TensorProto, helper

    proto = to_proto(net, net.nodes, net.constants)
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, net.shapes[name]))
    return dataclasses.replace(net, proto=proto, outputs=(name,))


def test_what_follows_the_cpu_and_leads_to_no_layer_stays_there() -> None:
    build = Floats(13)
    gate = build.node("Sigmoid", [build.conv("x", 6, 4, 1)])
    middle = build.conv(build.node("Mul", [gate, build.const(2.0)]), 4, 6, 3)
    net = build.net(build.node("Mul", [build.node("Sigmoid", [middle]), build.const(640.0)]))
    found = grouped(net)
    assert [(unit.head.op_type, unit.on_dpu) for unit in found] == [
        ("Conv", True), ("Sigmoid", False), ("Mul", True), ("Conv", True), ("Sigmoid", False), ("Mul", False),
    ]  # fmt: skip
    assert found[-1].reason == BEHIND


def test_losses_name_the_tensors_and_what_helps() -> None:
    net, costs = joined(1.0, layer=True), {"x": 0.02, "n0": 0.03, "n1": 0.001}
    made = calibrate.Calibrated(net, grouped(net), {}, {}, (), costs)
    rows = losses.sensitivity(made)
    assert [name for name, _, _ in rows] == ["n0", "x", "n1"]
    assert rows[0][2] == "rounding it alone leaves 15.2 dB"
    said = " ".join(losses.notices(made))
    assert "inputs to int8 alone leaves 17.0 dB" in said
    assert 'keep_float = ["n0"]' in said
    assert losses.notices(dataclasses.replace(made, costs={"x": 1e-5, "n0": 1e-5})) == ()


def all_kinds(found: Sequence[Unit]) -> list[str]:
    return [unit.head.op_type for unit in found]


def test_a_prelu_of_one_slope_is_a_leaky_relu() -> None:
    build = Floats(14)
    y = build.node("PRelu", [build.conv("x", 6, 4, 1), build.const(np.full((6, 1, 1), 0.25))])
    y = build.node("PRelu", [build.conv(y, 6, 6, 1), build.const(build.rng.rand(6, 1, 1))])
    net = build.net(build.conv(y, 4, 6, 1))
    made, notices = forms.legalize(to_proto(net, net.nodes, net.constants))
    assert all_kinds(grouped(made)).count("PRelu") == 1
    assert "PReLU's slope 0.25 became 64/256" in " ".join(notices)
    same(made, net, 15)
