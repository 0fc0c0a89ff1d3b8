"""How far two runs of a model part: figures for each output over a batch of samples, and findings when a bound is broken.

Everything is compared in real values: a quantized output is dequantized with its own scale first.
"""

from __future__ import annotations

from edgekit.parity.figures import compare, compare_all
from edgekit.parity.values import Element, Finding, OutputParity, Severity
from edgekit.parity.verdict import judge, judge_inputs

__all__ = ["Element", "Finding", "OutputParity", "Severity", "compare", "compare_all", "judge", "judge_inputs"]
