"""Hexagon's HTP through QDQ ONNX: what the table cannot say. Source: single-operator models given to the HTP simulator."""

from __future__ import annotations

from edgekit.graph import Operator
from edgekit.opset import rules
from edgekit.opset.view import View

NOT_FINALIZED = frozenset(("GRU", "InstanceNormalization", "LSTM", "RoiAlign", "ScatterND", "Selu", "ThresholdedRelu"))
"""Documented for the provider and taken by its checks, but the simulator could not finalize a small graph with one."""


def refusal(view: View, operator: Operator) -> str | None:
    """Why the HTP refuses `operator`, or None."""
    if operator.attributes.get("confirmed"):
        return None  # the simulator took this very graph
    if operator.type in NOT_FINALIZED:
        return f"{operator.type} is documented, but a small graph with it did not finalize on the simulator"
    return rules.by_table(view, operator)
