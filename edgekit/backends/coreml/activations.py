"""8-bit grids of the activations that linear layers read, measured on the float program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgekit.backends.coreml import layers
from edgekit.quantize.grid import Affine, affine
from edgekit.quantize.ranges import Method, choose, histogram
from edgekit.tensors import Array
from edgekit.virtual.coreml import interpreter
from edgekit.virtual.coreml.plan import Plan

VALUES = 65536
"""Values of an activation that are kept over all samples, for its histogram."""

LEAST_SCALE = 2.0**-14
"""Scales are stored in half precision, which has fewer digits below this."""


def grids(plan: Plan, samples: Sequence[Mapping[str, Any]], method: Method = "mse") -> dict[str, Affine]:
    """The grid of each activation that a linear layer reads, by name; its scale is a half-precision number."""
    import numpy as np

    wanted = {layer.input for layer in layers.find(plan)}
    ends = dict.fromkeys(wanted, (0.0, 0.0))
    kept: dict[str, list[Array]] = {name: [] for name in wanted}
    for number, sample in enumerate(samples):

        def look(name: str, value: Any, number: int = number) -> None:
            flat = value.float().numpy().reshape(-1)
            ends[name] = min(ends[name][0], float(flat.min())), max(ends[name][1], float(flat.max()))
            count = max(1, VALUES // len(samples))
            kept[name].append(flat if flat.size <= count else flat[np.random.default_rng(number).integers(0, flat.size, count)])

        for name in wanted & set(sample):
            look(name, sample[name])

        def tap(_operation: Any, output: Any, _computed: Any, stored: Any, look: Any = look) -> None:
            if output.name in wanted:
                look(output.name, stored)

        interpreter.run(plan, sample, {}, tap)
    return {name: _grid(np.concatenate(kept[name]), *ends[name], method) for name in sorted(wanted)}


def _grid(values: Array, low: float, high: float, method: Method) -> Affine:
    import numpy as np

    chosen = affine(*choose(histogram(values, low, high), method))
    scale = float(np.float16(max(chosen.scale, LEAST_SCALE)))
    return Affine(scale, chosen.zero_point, chosen.lowest, chosen.highest)
