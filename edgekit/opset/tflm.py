"""TensorFlow Lite Micro's kernels: chosen by operator, whatever its version; types decide inside. See `targets/ops/tflm.json`."""

from __future__ import annotations

from edgekit.graph import Operator
from edgekit.opset import rules
from edgekit.opset.view import View


def refusal(view: View, operator: Operator) -> str | None:
    """Why TFLM has no kernel for `operator`, or None."""
    if operator.custom:
        known = operator.type in view.table.custom
        return None if known else f"{operator.type} is a custom operator that {view.table.label} does not have"
    return rules.by_table(view, operator)
