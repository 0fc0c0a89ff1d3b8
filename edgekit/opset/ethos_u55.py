"""Ethos-U55: in a file that vela compiled, one custom operator holds what the NPU runs; everything else was left to the CPU."""

from __future__ import annotations

from edgekit.graph import Operator
from edgekit.opset.view import View


def refusal(view: View, operator: Operator) -> str | None:
    """Why the NPU does not run `operator`, or None."""
    return None if operator.type in view.table.custom else f"vela left it to the CPU: {view.table.label} does not take it as it is"
