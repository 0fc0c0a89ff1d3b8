"""The DPU's verdicts. Its limits depend on the configuration and are judged by the backend, which leaves the reason with each operator."""

from __future__ import annotations

from edgekit.graph import Operator
from edgekit.opset.view import View


def refusal(_view: View, operator: Operator) -> str | None:
    """Why an operator runs on the CPU; None for one that was quantized for the DPU."""
    reason = str(operator.attributes.get("cpu", ""))
    suggestion = operator.attributes.get("suggestion")
    return (f"{reason} ({suggestion})" if suggestion else reason) or None
