"""What quantizing needs to know of operators: which only move values, what their results cannot leave, where they still change."""

from __future__ import annotations

from typing import Any

MOVERS = frozenset(("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather", "MaxPool", "Split", "DepthToSpace", "SpaceToDepth",
                    "Identity", "Tile", "Expand", "GlobalMaxPool", "ReduceMax"))  # fmt: skip
"""Operators that only move or pick values: their outputs keep the grid of their first input."""

PARAMETERS = {"Clip": (1, 2), "Resize": (1, 2, 3), "Pad": (1, 2, 3)}
"""Positions of float constants that stay as they are."""

SATURATING = frozenset(("Max", "Min", "Add", "Sub", "Where"))
"""Operators whose result is bounded by its grid: a mask among their constants need not reach further than twice the result."""

BOUNDS = {"Sigmoid": (0.0, 1.0), "HardSigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Cos": (-1.0, 1.0), "Sin": (-1.0, 1.0)}
"""What an operator cannot leave."""

AVERAGES = frozenset(("ReduceMean", "GlobalAveragePool", "AveragePool"))
"""Operators whose results stay within the bounds of what they read."""

NEEDED = {"Relu": (0.0, float("inf")), "HardSwish": (-3.0, float("inf")), "Sigmoid": (-12.0, 12.0), "Tanh": (-6.0, 6.0)}
"""Where an operator's result still changes with its input (to 1e-5): a grid for it alone need not reach further."""


def whole(graph: Any) -> dict[str, tuple[float, float]]:
    """Results of bounded operators that become outputs, and their bounds: a probability that calibration has not met must not be clipped."""
    makers, found = {name: node for node in graph.node for name in node.output}, dict[str, tuple[float, float]]()
    for output in graph.output:
        way = [output.name]
        while (node := makers.get(way[-1])) and node.op_type in MOVERS | AVERAGES:
            way.append(node.input[0])
        if node and node.op_type in BOUNDS:
            found |= dict.fromkeys(way, BOUNDS[node.op_type])
    return found
