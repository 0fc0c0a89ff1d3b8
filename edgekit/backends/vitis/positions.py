"""Positions of activations: per tensor by squared error on real values, then moved until the DPU's alignment and shift ranges hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from edgekit.backends.vitis.net import ALIGNED, MEANS, Net, Unit, attribute
from edgekit.backends.vitis.observe import Seen
from edgekit.errors import ConversionError
from edgekit.quantize.grid import TINY
from edgekit.tensors import Array

CANDIDATES = 4
"""Positions tried from the one that clips nothing upward: each halves the range."""

SHIFT_CUT = (0, 16)
SHIFT_BIAS_MAX = 15
SHIFT_READ_MAX = 7
SHIFT_WRITE_ADD = (-7, 25)
SHIFT_WRITE_MUL = (0, 32)
HARD_SIGMOID_IN = (0, 15)
HARD_SIGMOID_OUT = 7
"""Ranges of AMD Quark 0.13 (onnx/postprocess/refinement/refine.py): shift_cut = wpos + ipos - opos, shift_bias = wpos + ipos - bpos,
shift_read = max(ipos) - min(ipos), shift_write of an add = min(ipos) - opos, of a product = sum(ipos) - opos."""

ACCUMULATOR_BITS = 24
LOOPS = 20


def covering(largest: float) -> int:
    """The finest position whose int8 range holds `largest` (up to 127 steps); 7 for a tensor that is always zero."""
    return math.floor(math.log2(127 / largest)) if largest > TINY else 7


def clamp(position: int, limits: tuple[int, int]) -> int:
    """The nearest position within limits."""
    return min(max(position, limits[0]), limits[1])


def error(values: Array, position: int) -> float:
    """Mean squared error of values rounded to int8 of a position."""
    import numpy as np

    scale = 2.0**position
    return float(((np.clip(np.rint(values * scale), -128, 127) / scale - values) ** 2).mean())


def best(values: Array, largest: float) -> int:
    """The position of least squared error."""
    base = covering(largest)
    return min(range(base, base + CANDIDATES), key=lambda position: (error(values, position), position))


def bias_range(cut: int, accumulator: int, leaky: bool) -> tuple[int, int]:
    """Lowest and highest position of a bias behind an accumulator's position and its shift to the output."""
    lowest_shift = 0 if leaky else min(0, -(ACCUMULATOR_BITS - (8 + cut)))
    return accumulator - SHIFT_BIAS_MAX, accumulator - lowest_shift


def constant_range(kind: str, given: int, out: int) -> tuple[int, int]:
    """Lowest and highest position of a constant that is added to, or multiplied with, a tensor of position `given`."""
    if kind == "Mul":
        return out - given + SHIFT_WRITE_MUL[0], out - given + SHIFT_WRITE_MUL[1]
    return max(given - SHIFT_READ_MAX, out + SHIFT_WRITE_ADD[0]), given + SHIFT_READ_MAX


def choose(net: Net, units: Sequence[Unit], seen: Mapping[str, Seen], fixed: Mapping[str, int]) -> dict[str, int]:
    """Legal positions of every tensor in `seen`, as close to the best (or to the `fixed` one) as the ranges allow.

    Raises `ConversionError` where they do not settle.
    """
    found = {name: fixed[name] if name in fixed else best(one.values, float(one.largest.max(initial=0))) for name, one in seen.items()}
    shared = groups(net, units, found)
    for _ in range(LOOPS):
        before = dict(found)
        for group in shared:
            for name in group:
                found[name] = min(found[other] for other in group)
        for unit in units:
            if unit.on_dpu:
                _move(net, unit, found)
        if found == before:
            return found
    raise ConversionError(f"the shift ranges of the DPU cannot all be kept: after {LOOPS} rounds positions still move", "split the model")


def groups(net: Net, units: Sequence[Unit], known: Mapping[str, int]) -> list[list[str]]:
    """Tensors that move through the DPU as they are and so share a position."""
    shared: list[set[str]] = []
    for unit in units:
        if not unit.on_dpu or unit.head.op_type not in ALIGNED:
            continue
        names = {name for name in (*net.unit_data(unit), unit.output) if name in known}
        touching = [group for group in shared if group & names]
        shared = [group for group in shared if not group & names] + [names.union(*touching)]
    return [sorted(group) for group in shared]


def _move(net: Net, unit: Unit, positions: dict[str, int]) -> None:
    """Change the positions around one unit to what its shifts allow."""
    kind, out = unit.head.op_type, unit.output
    inputs = [name for name in net.unit_data(unit) if name in positions]
    if kind in ("Add", "Sub") and inputs:
        low = min(positions[name] for name in inputs)
        for name in inputs:
            positions[name] = min(positions[name], low + SHIFT_READ_MAX)
        positions[out] = min(max(positions[out], low - SHIFT_WRITE_ADD[1]), low - SHIFT_WRITE_ADD[0])
    elif kind == "Mul" and len(inputs) == 2:
        total = sum(positions[name] for name in inputs)
        positions[out] = min(max(positions[out], total - SHIFT_WRITE_MUL[1]), total - SHIFT_WRITE_MUL[0])
    elif kind == "HardSigmoid":
        source = inputs[0]
        positions[source] = min(max(positions[source], HARD_SIGMOID_IN[0]), HARD_SIGMOID_IN[1])
        positions[out] = max(positions[out], HARD_SIGMOID_OUT)
    elif kind in MEANS and inputs:
        area = math.prod(net.shapes[inputs[0]][2:] if kind == "GlobalAveragePool" else attribute(unit.head, "kernel_shape"))
        positions[out] = clamp(positions[out], (positions[inputs[0]], positions[inputs[0]] + math.floor(math.log2(area))))
