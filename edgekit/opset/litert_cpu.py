"""LiteRT's built-in kernels: an operator runs when its version is registered; see `targets/ops/litert_cpu.json`."""

from __future__ import annotations

from edgekit.graph import Operator
from edgekit.opset import rules
from edgekit.opset.view import View


def refusal(view: View, operator: Operator) -> str | None:
    """Why the runtime has no kernel for `operator`, or None."""
    if operator.type.startswith("Flex"):
        return f"{operator.type} is a Select TensorFlow operator, and the Flex library is not part of the runtime"
    if operator.custom and operator.type not in view.table.custom:
        return f"{operator.type} is a custom operator that the runtime does not have"
    return None if operator.custom else rules.by_table(view, operator)
