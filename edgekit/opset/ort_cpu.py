"""ONNX Runtime's CPU provider: an operator runs when the runtime has a kernel for it; see `targets/ops/ort_cpu.json`."""

from __future__ import annotations

from edgekit.graph import Operator
from edgekit.opset import rules
from edgekit.opset.view import View


def refusal(view: View, operator: Operator) -> str | None:
    """Why the runtime has no kernel for `operator`, or None."""
    if operator.custom:
        known = operator.type in view.table.custom
        return None if known else f"{operator.type} is a custom operator that the runtime does not have"
    return rules.by_table(view, operator)
