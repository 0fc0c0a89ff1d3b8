"""Dense layers and sums in forms on which LiteRT's reference kernels and TFLM agree: held against both, on inputs where they did not before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")
pytest.importorskip("tflite_micro")

from edgekit.formats import tflite, tflm
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.legalize import tflite_exact
from tests.tflite_build import Net

DEPTH, CHANNELS, INPUTS = 48, 96, 160
BIASES = {"int8": np.int32, "int16": np.int64}


def net(
    path: Path, dtype: str, *, shape: tuple[int, ...] = (1, DEPTH), bias: bool = True, relu: bool = False, steps: int = 1, scales: int = CHANNELS
) -> Path:
    """`steps` dense layers of the same weights side by side, each with an output of its own."""
    rng, made = np.random.default_rng(3), Net()
    scale, zero = np.linspace(0.004, 0.02, scales), 0 if dtype == "int16" else 3
    values = rng.integers(-127, 128, (CHANNELS, DEPTH)).astype(np.int8)
    weights = made.constant("w", values, scale=scale)
    given = [weights, made.constant("b", rng.integers(-3000, 3000, CHANNELS).astype(BIASES[dtype]), scale=0.05 * scale)] if bias else [weights]
    ends = []
    for step in range(steps):
        x = made.tensor(f"x{step}", shape, dtype, scale=0.05, zero_point=zero)
        y = made.tensor(f"y{step}", (*shape[:-1], CHANNELS), dtype, scale=0.7, zero_point=zero)
        options = {"fusedActivationFunction": int(relu), "keepNumDims": len(shape) > 2}
        made.add("FULLY_CONNECTED", [x, *given], [y], version=4, table="FullyConnectedOptions", **options)
        ends.append((x, y))
    return made.write(path, [x for x, _ in ends], [y for _, y in ends])


def run(path: Path) -> tuple[Any, Any]:
    """LiteRT's reference kernels and TFLM on the same random inputs."""
    model, rng, found = tflite.open(str(path), {}), np.random.default_rng(1), []
    reference, micro = tflite.session(model, reference_kernels=True), tflm.Interpreter(path, model.signature)
    for _ in range(INPUTS):
        limits = [(spec, np.iinfo(spec.dtype)) for spec in model.signature.inputs]
        given = {spec.name: rng.integers(ends.min, ends.max, spec.shape, dtype=ends.dtype, endpoint=True) for spec, ends in limits}
        found.append([[session.run(given)[spec.name].astype(int) for spec in model.signature.outputs] for session in (reference, micro)])
    return tuple(np.array([pair[side] for pair in found]) for side in (0, 1))


def kinds(path: Path) -> list[str]:
    return [operator.type for operator in tflite.graph(path).operators]


@pytest.mark.parametrize("shape", [(1, DEPTH), (2, DEPTH), (1, 3, DEPTH), (1, 2, 2, DEPTH)])
@pytest.mark.parametrize(("bias", "relu"), [(True, False), (False, True)])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_a_dense_layer_becomes_one_on_which_both_agree(tmp_path: Path, dtype: str, shape: tuple[int, ...], bias: bool, relu: bool) -> None:
    path = net(tmp_path / "net.tflite", dtype, shape=shape, bias=bias, relu=relu, scales=1 if dtype == "int16" and bias else CHANNELS)
    before, micro = run(path)
    assert (before != micro).any() and np.abs(before - micro).max() == 1
    assert bool(tflite_exact.settle(path)) == (dtype == "int16")
    after, settled = run(path)
    np.testing.assert_array_equal(after, settled)
    assert len(np.unique(after)) > 100 and np.abs(after - before).max() <= (1 if dtype == "int16" else 2)
    assert [kind for kind in kinds(path) if kind != "RESHAPE"] == ["CONV_2D" if dtype == "int16" else "FULLY_CONNECTED"]
    if dtype == "int16":
        np.testing.assert_array_equal(settled, micro, "what devices compute stays the same")


def test_weights_keep_their_integers_and_steps_share_them(tmp_path: Path) -> None:
    path = net(tmp_path / "net.tflite", "int8", steps=3)
    values, size = flatbuffer.load(path.read_bytes()).buffers[1].data, path.stat().st_size
    tflite_exact.settle(path)
    model = flatbuffer.load(path.read_bytes())
    graph = model.subgraphs[0]
    assert len({(int(o.inputs[1]), int(o.inputs[2])) for o in graph.operators}) == 1, "one scale, input and output: one set of weights and biases"
    weights, bias = (graph.tensors[int(i)] for i in graph.operators[0].inputs[1:])
    assert (flatbuffer.data(model, weights).reshape(-1) == np.frombuffer(bytes(values), np.int8)).all()
    np.testing.assert_allclose(bias.quantization.scale, np.float32(0.05) * weights.quantization.scale, rtol=1e-6)
    assert path.stat().st_size < size + 2 * 20 * CHANNELS
    after, micro = run(path)
    np.testing.assert_array_equal(after, micro)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_the_steps_of_a_loop_share_their_filters(tmp_path: Path, dtype: str) -> None:
    path = net(tmp_path / "net.tflite", dtype, steps=3)
    assert tflite_exact.fit(path, "cortex-m55") and kinds(path).count("CONV_2D") == 3
    graph = flatbuffer.load(path.read_bytes()).subgraphs[0]
    layers = [operator for operator in graph.operators if len(operator.inputs) == 3]
    assert len({(int(o.inputs[1]), int(o.inputs[2])) for o in layers}) == 1


def test_given_scales_stay_and_a_convolution_is_made_where_it_costs_little(tmp_path: Path) -> None:
    for core, kind in (("cortex-m4", "FULLY_CONNECTED"), ("cortex-m55", "CONV_2D")):
        path = net(tmp_path / f"{core}.tflite", "int8")
        _, before = run(path)
        assert bool(tflite_exact.fit(path, core)) == (kind == "CONV_2D")
        after, micro = run(path)
        assert kind in kinds(path) and (after == micro).all() == (kind == "CONV_2D")
        np.testing.assert_array_equal(micro, before, "what devices compute stays the same")


SUMMED = [([1], "int8"), ([1, 2], "int8"), ([-1], "int8"), ([1, 2, 3], "int8"), ([1, 2], "int16"), ([-1], "int16")]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("axes", "dtype"), SUMMED)
def test_a_sum_is_a_mean_of_a_smaller_scale(tmp_path: Path, axes: list[int], dtype: str, keep: bool) -> None:
    made, shape = Net(), (1, 6, 5, 7)
    summed = np.zeros(shape).sum(tuple(axes), keepdims=keep).shape
    zero, steps = (3, 0.05) if dtype == "int8" else (0, 0.0004)
    x = made.tensor("x", shape, dtype, scale=steps, zero_point=zero)
    y = made.tensor("y", summed, dtype, scale=0.31 * steps * 20, zero_point=zero)
    made.add("SUM", [x, made.constant("axes", np.array(axes, np.int32))], [y], version=2, table="ReducerOptions", keepDims=keep)
    path = made.write(tmp_path / "net.tflite", [x], [y])
    assert len(tflite_exact.fit(path, "cortex-m4")) == 1 and kinds(path) == ["MEAN", "RESHAPE"]
    reference, micro = run(path)
    np.testing.assert_array_equal(reference, micro)
    model, rng, ends = tflite.open(str(path), {}), np.random.default_rng(2), np.iinfo(dtype)
    given = rng.integers(ends.min // 4, ends.max // 4, shape, dtype=dtype)
    wanted = np.clip((given.astype(float) - zero).sum(tuple(axes), keepdims=keep) / (0.31 * 20) + zero, ends.min, ends.max)
    assert len(np.unique(np.rint(wanted))) > 0.5 * wanted.size
    assert np.abs(tflite.session(model, reference_kernels=True).run({"x": given})["y"] - wanted).max() < 1


def test_what_agrees_already_is_not_written_anew(tmp_path: Path) -> None:
    path = net(tmp_path / "net.tflite", "int8", scales=1)
    content = path.read_bytes()
    assert tflite_exact.settle(path) == tflite_exact.fit(path, "cortex-m55") == () and path.read_bytes() == content
