"""How the Core ML backend rounds: half precision's grid, what layers read, layers rounded one after another. No coremltools here."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from edgekit.backends.coreml import halves, layers, rounding, tables
from edgekit.backends.coreml.layers import MilLayer
from edgekit.backends.coreml.rounding import Recipe
from edgekit.quantize import palette
from edgekit.quantize.moments import Layer, moments
from edgekit.virtual.coreml import spec
from edgekit.virtual.coreml.plan import Plan, Step

torch = pytest.importorskip("torch")


def step(kind: str, name: str, read: str, **constants: Any) -> Step:
    from edgekit.virtual.coreml import kernels

    out = (spec.Named(name, spec.Type("float32", (1, 8))),)
    operation = spec.Operation(kind, name, {"x": (read,)}, out, {})
    return Step(operation, kernels.load()[kind], constants, {"x": (read,)}, (), ())


def plan(*steps: Step) -> Plan:
    return Plan(("x",), (steps[-1].operation.outputs[0].name,), steps, {})


def dense(name: str, read: str, outputs: int, inputs: int, seed: int) -> Step:
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(outputs, inputs)), rng.normal(size=outputs)
    return step("linear", name, read, weight=torch.from_numpy(weight.astype(np.float32)), bias=torch.from_numpy(bias.astype(np.float32)))


def samples(count: int, width: int, seed: int) -> list[dict[str, Any]]:
    """Inputs of six hidden directions, the same for every seed, and a little noise."""
    rng, mixing = np.random.default_rng(seed), np.random.default_rng(77).normal(size=(6, width))
    rows = [rng.normal(1, 1, (50, 6)) @ mixing + 0.05 * rng.normal(size=(50, width)) for _ in range(count)]
    return [{"x": torch.from_numpy(row.astype(np.float32))} for row in rows]


def test_half_steps_are_the_distance_to_the_next_half() -> None:
    values = np.abs(np.concatenate([np.random.default_rng(0).normal(size=100), [6.0e-8, 6.2e-5, 1.0, 2.0, 2000.0]])).astype(np.float16)
    np.testing.assert_array_equal(halves.half_steps(values.astype(np.float64)), np.spacing(values).astype(np.float64))


def test_half_by_data_is_closer_where_inputs_hang_together() -> None:
    rng = np.random.default_rng(1)
    linear = Layer(rng.normal(size=(16, 40)).astype(np.float32), rng.normal(5, 1, 16).astype(np.float32))
    teach, judge = (rng.normal(2, 1, (400, 4)) @ np.random.default_rng(9).normal(size=(4, 40)) for _ in range(2))
    teach, judge = teach.astype(np.float32), judge.astype(np.float32)
    seen = (moments(teach[None], teach[None]), moments(judge[None], judge[None]))
    errors = {}
    for method in ("nearest", "second-order"):
        weight, bias = halves.to_half(linear, seen, seen, method)
        assert (weight == weight.astype(np.float16)).all() and (bias == bias.astype(np.float16)).all()
        errors[method] = float(((judge @ (weight - linear.weight).T.astype(np.float64) + (bias - linear.bias)) ** 2).mean())
    assert errors["second-order"] < 0.2 * errors["nearest"]


@pytest.mark.parametrize(("groups", "options"), [
    (1, {}), (1, {"strides": [2, 1], "pad_type": "same"}), (4, {"pad_type": "custom", "pad": [1, 0, 2, 1]}), (2, {"dilations": [1, 2]}),
])  # fmt: skip
def test_columns_are_what_the_convolution_multiplies(groups: int, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(2)
    weight = torch.from_numpy(rng.normal(size=(8, 8 // groups, 3, 2)).astype(np.float32))
    constants = {name: value if isinstance(value, str) else torch.tensor(value) for name, value in options.items()}
    conv = step("conv", "y", "x", weight=weight, groups=torch.tensor(groups), **constants)
    (layer,) = layers.find(plan(conv))
    x = torch.from_numpy(rng.normal(size=(2, 8, 7, 6)).astype(np.float32))
    read = layers.columns(layer, conv, x.numpy(), 10**6, seed=0)
    matrix = layer.linear(conv).grouped
    got = np.einsum("gok,gsk->sgo", matrix, read).reshape(read.shape[1], -1)
    wanted = conv.kernel(x=x, **conv.constants).permute(0, 2, 3, 1).reshape(-1, 8).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
def test_matrix_products_with_constants_are_layers(transposed: bool) -> None:
    weight = torch.arange(12.0).reshape(3, 4) if transposed else torch.arange(12.0).reshape(4, 3)
    product = step("matmul", "y", "x", y=weight, transpose_y=torch.tensor(transposed))
    (layer,) = layers.find(plan(product))
    assert layer.linear(product).weight.shape == (3, 4)
    np.testing.assert_array_equal(layer.from_matrix(layer.to_matrix(weight.numpy()), tuple(weight.shape)), weight.numpy())


@pytest.mark.parametrize(("recipe", "kinds"), [
    (Recipe(16), {"half"}), (Recipe(8), {"steps", "half"}), (Recipe(4, table=True), {"table", "half"}),
    (Recipe(4, table=True, grouped=True), {"table", "half"}), (Recipe(4, grouped=True), {"steps", "half"}),
    (Recipe(16, sparsity=0.5), {"sparse", "half"}), (Recipe(8, sparsity=0.5), {"sparse steps", "half"}),
    (Recipe(6, table=True, sparsity=0.5), {"sparse table", "half"}),
])  # fmt: skip
def test_layers_are_stored_as_the_recipe_says(recipe: Recipe, kinds: set[str]) -> None:
    net = plan(dense("a", "x", 64, 48, 1), step("relu", "r", "a"), dense("b", "r", 8, 64, 2))
    made, method = rounding.round_program(net, samples(8, 48, 3), recipe)
    assert [item.layer.name for item in made] == ["a", "b"] and method in ("second-order", "nearest")
    assert {kind(item) for item in made} == kinds
    for item in made:
        kept = np.ones(item.weight.shape, bool) if item.mask is None else item.mask
        assert not item.weight[~kept].any() and kept.mean() == (0.5 if recipe.sparsity and not item.half else 1)
        if item.entries is not None and item.integers is not None:
            values = palette.looked_up(item.integers, item.entries).astype(np.float32)
            np.testing.assert_array_equal(item.weight, np.where(kept, values, 0))
        if item.scales is not None and item.integers is not None:
            assert np.abs(item.integers).max() == 2 ** (recipe.bits - 1) - 1
            each = np.repeat(item.scales, item.weight.shape[1] // item.scales.shape[1], axis=1)
            np.testing.assert_allclose(item.weight, item.integers * each, rtol=1e-3)
        assert (item.weight == item.weight.astype(np.float16)).all()


def kind(item: rounding.Stored) -> str:
    how = "table" if item.entries is not None else "steps" if item.integers is not None else "half" if item.mask is None else ""
    return how if item.mask is None else f"sparse {how}".strip()


@pytest.mark.parametrize("recipe", [Recipe(16), Recipe(8), Recipe(6, table=True), Recipe(8, sparsity=0.5)])
def test_a_weight_that_several_layers_read_is_stored_once(recipe: Recipe) -> None:
    first, other = dense("a", "x", 64, 64, 1), dense("c", "b", 64, 64, 2)
    again = step("linear", "b", "a", weight=first.constants["weight"], bias=other.constants["bias"])
    made, _ = rounding.round_program(plan(first, again, other), samples(8, 64, 3), recipe)
    np.testing.assert_array_equal(made[0].weight, made[1].weight)
    assert not np.array_equal(made[0].weight, made[2].weight)
    assert not np.array_equal(made[0].bias, made[1].bias)


@pytest.mark.parametrize(("precision", "how"), [(Recipe(16), "half"), (Recipe(8), "steps"), (Recipe(6, table=True), "table")])
def test_weights_of_recurrent_transposed_and_embedding_operators_are_rounded_to_nearest(precision: Recipe, how: str) -> None:
    rng = np.random.default_rng(0)
    shapes = {"lstm": ("weight_ih", (256, 48)), "conv_transpose": ("weight", (40, 16, 3, 3)), "gather": ("x", (100, 48))}
    made = []
    for kind_of, (parameter, shape) in shapes.items():
        value = rng.normal(size=shape).astype(np.float32)
        (item,) = rounding._taken(plan(step(kind_of, "a", "y", **{parameter: torch.from_numpy(value)})), precision)
        made.append(item)
        assert kind(item) == how and item.bias is None and item.weight.shape == shape
        apart = {"half": 2e-3, "steps": 1 / 127, "table": 1 / 4}[how] * float(np.abs(value).max())
        assert np.abs(item.weight - value).max() <= apart
    assert [item.layer.axis for item in made] == [0, 1, 0]


def test_half_makes_up_for_what_earlier_layers_lost() -> None:
    """The float layer reads w, the rounded one x = w + something that x itself foretells: rounded weights take back most of it."""
    rng = np.random.default_rng(4)
    linear = Layer(rng.normal(size=(16, 24)).astype(np.float32), rng.normal(size=16).astype(np.float32))
    wanted = [rng.normal(1, 1, (800, 24)).astype(np.float32) for _ in range(2)]
    drift = (np.eye(24) + 0.02 * rng.normal(size=(24, 24))).astype(np.float32)
    seen = [w @ drift + np.float32(0.01) for w in wanted]
    split = tuple(moments(x[None], w[None]) for x, w in zip(seen, wanted, strict=True))
    float_split = tuple(moments(w[None], second=False) for w in wanted)
    right = wanted[1] @ linear.weight.T + linear.bias
    errors = {}
    for method in ("nearest", "bias", "second-order"):
        weight, bias = halves.to_half(linear, split, float_split, method)  # type: ignore[arg-type]  # two of each
        errors[method] = float(((seen[1] @ weight.T + bias - right) ** 2).mean())
    assert errors["second-order"] < 0.05 * errors["bias"] < 0.05 * errors["nearest"]


@pytest.mark.parametrize(("outputs", "k", "bits", "groups"), [(64, 1152, 4, 8), (96, 96, 4, 4), (96, 96, 8, 1), (7, 2000, 4, 1)])
def test_tables_for_groups_cost_little(outputs: int, k: int, bits: int, groups: int) -> None:
    found = tables.count(Layer(np.zeros((outputs, k), np.float32), np.zeros(outputs, np.float32)), bits)
    assert found == groups and (groups == 1 or groups * 2 * 2**bits <= outputs * k * bits / 8 / 32)


def test_rounding_by_data_beats_nearest_on_other_samples() -> None:
    net = plan(dense("a", "x", 64, 48, 1), step("relu", "r", "a"), dense("b", "r", 64, 64, 2))
    errors = {}
    for method in ("nearest", "bias", "second-order"):
        made, _ = rounding.round_program(net, samples(12, 48, 3), Recipe(4, table=True, method=method))
        twins = rounding.Twins(net, samples(4, 48, 4), half=True)
        for item in made:
            twins.change(item.layer, {"weight": torch.from_numpy(item.weight), "bias": torch.from_numpy(item.bias)})
        twins.advance(len(net.steps), net)
        errors[method] = twins.error(net)
    assert errors["second-order"] < 0.3 * errors["nearest"]


def test_kept_operators_are_left_alone() -> None:
    net = plan(dense("a", "x", 64, 48, 1), dense("b", "a", 64, 64, 2))
    made, _ = rounding.round_program(net, samples(4, 48, 3), Recipe(8, kept=frozenset({"a"})))
    assert [item.layer.name for item in made] == ["b"]


def test_a_layer_needs_a_constant_float_weight() -> None:
    computed = dataclasses.replace(step("linear", "y", "x"), variables={"x": ("x",), "weight": ("w",)})
    assert layers.find(plan(computed)) == []
    assert isinstance(layers.find(plan(dense("a", "x", 4, 4, 1)))[0], MilLayer)
