"""Which activations of a Core ML program stay in half precision: their costs against the same computed by hand. No coremltools here."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edgekit.backends.coreml import activations, rounding, sensitivity
from edgekit.backends.coreml.rounding import Recipe
from edgekit.quantize.grid import Affine
from edgekit.virtual.coreml.plan import Plan
from tests.test_backend_coreml_rounding import dense, plan, samples

torch = pytest.importorskip("torch")

WIDTHS = (8, 24, 24, 24, 24)


def chain() -> Plan:
    """Dense layers in a row, of which the second's results have one channel that reaches 200 times further and that nothing reads."""
    steps = [dense(f"l{i}", "x" if i == 0 else f"l{i - 1}", WIDTHS[i + 1], WIDTHS[i], i) for i in range(4)]
    steps[1].constants["weight"][3] *= 200
    steps[2].constants["weight"][:, 3] = 0
    return plan(*steps)


def by_hand(net: Plan, x: np.ndarray, grids: dict[str, Affine]) -> np.ndarray:
    """The chain with torch's own fake quantization."""
    value, name = torch.from_numpy(x), "x"
    for step in net.steps:
        if name in grids:
            grid = grids[name]
            value = torch.fake_quantize_per_tensor_affine(value, grid.scale, grid.zero_point, grid.lowest, grid.highest)
        value = torch.nn.functional.linear(value, step.constants["weight"], step.constants["bias"])
        name = step.operation.outputs[0].name
    return np.asarray(value.double())


def test_noise_is_what_torch_computes_with_one_activation_on_its_grid() -> None:
    net, rows = chain(), samples(4, 8, 1)
    grids = activations.grids(net, rows, "minmax")
    costs = sensitivity.measure(net, rows, grids)
    assert [cost.readers for cost in costs.values()] == [("l0",), ("l1",), ("l2",), ("l3",)]
    for name, cost in costs.items():
        pairs = [(by_hand(net, row["x"].numpy(), {}), by_hand(net, row["x"].numpy(), {name: grids[name]})) for row in rows]
        noise = sum(((a - b) ** 2).sum() for a, b in pairs) / sum((a**2).sum() for a, _ in pairs)
        assert cost.noise == pytest.approx(noise, rel=1e-3)


def test_the_activation_that_costs_most_stays_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    net, rows = chain(), samples(4, 8, 1)
    grids = activations.grids(net, rows, "minmax")
    costs = sensitivity.measure(net, rows, grids)
    assert sensitivity.too_dear(costs) == ()  # each layer is more than a tenth of all multiply-adds
    monkeypatch.setattr(sensitivity, "MOST_MACS", 0.4)
    spared = sensitivity.too_dear(costs)
    assert spared == ("l1",)
    (told,) = sensitivity.notice(costs, spared)
    assert told.startswith("1 of 4 layers read half precision") and told.endswith("l2")
    worst, *others = sensitivity.rows(costs, spared)
    assert worst[0] == "l2" and worst[1] > 10 and "left in half precision" in worst[2]
    assert all("half" not in reason for _, _, reason in others)
    kept = {name: grid for name, grid in grids.items() if name not in spared}
    x = rows[0]["x"].numpy()
    errors = [((by_hand(net, x, {}) - by_hand(net, x, chosen)) ** 2).mean() for chosen in (kept, grids)]
    assert errors[0] < 0.1 * errors[1]


def test_what_is_kept_in_single_precision_has_no_cost() -> None:
    net, rows = chain(), samples(2, 8, 1)
    assert "l1" not in sensitivity.measure(net, rows, activations.grids(net, rows), kept={"l2"})


def test_weights_of_layers_that_read_8_bits_are_8_bits_however_few() -> None:
    net, rows = chain(), samples(4, 8, 1)
    grids = activations.grids(net, rows)
    recipe = dataclasses.replace(Recipe(8), method="nearest")
    made, _ = rounding.round_program(net, rows, recipe, {name: grids[name] for name in ("x", "l0")})
    assert [item.half for item in made] == [False, False, True, True]
