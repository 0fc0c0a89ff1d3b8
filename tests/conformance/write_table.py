"""Run every case through the Hexagon route and write `docs/onnx-conformance.md`: `python -m tests.conformance.write_table [PROCESSES]`."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from tests.conformance import node_tests
from tests.conformance.node_tests import Outcome

PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx-conformance.md"

HEAD = """# ONNX operators on Hexagon

ONNX ships tests of single operators. Every one with float tensors ({count} cases of onnx {onnx}) was taken through the `{target}` route with
16-bit activations (`{precision}`) and run on Qualcomm's HTP simulator (onnxruntime-qnn {qnn}) with CPU fallback disabled. Weights and settings
are constants of the model, as exporters write them; each case is calibrated on its own inputs. Of a matrix product the error is a share of the
sum of its terms' magnitudes, since the chip multiplies two 16-bit matrices with 8 bits of one of them.

| outcome | cases | meaning |
| --- | --- | --- |
| exact | {exact} | floats within 2 % of the output's largest magnitude, or twice what the quantized file loses in ONNX Runtime; integers equal |
| refused | {refused} | no bundle is made, and the reason is given |
| wrong | {wrong} | computed something else, and nobody was told |
| crashed | {crashed} | ended without an answer |

`python -m tests.conformance.write_table` writes this page again; the tests hold a fixed part of it to «exact or refused».

## By operator

«written out» are the operator's definition in other operators. A reason stands for the first refused case.

| operator | exact | refused | why |
| --- | --- | --- | --- |
"""


def page(outcomes: Sequence[Outcome]) -> str:
    """The page, in Markdown."""
    counts = Counter(outcome.status for outcome in outcomes)
    head = HEAD.format(
        count=len(outcomes),
        onnx=metadata.version("onnx"),
        qnn=metadata.version("onnxruntime-qnn"),
        target=node_tests.TARGET,
        precision=node_tests.PRECISION,
        **{status: counts[status] for status in node_tests.STATUSES},
    )
    rows = [_row(operator, outcomes) for operator in sorted({o.operator for o in outcomes}, key=str.lower)]
    bad = [f"- `{o.name}`: {o.status}: {o.reason or f'off by {o.worst:.3g}'}" for o in outcomes if o.status in ("wrong", "crashed")]
    return head + "\n".join(rows) + ("\n\n## To be mended\n\n" + "\n".join(bad) if bad else "") + "\n"


def _row(operator: str, outcomes: Sequence[Outcome]) -> str:
    here = [outcome for outcome in outcomes if outcome.operator == operator]
    refused = [outcome for outcome in here if outcome.status == "refused"]
    return f"| {operator} | {sum(o.status == 'exact' for o in here)} | {len(refused)} | {_plain(refused[0]) if refused else ''} |"


def _plain(outcome: Outcome) -> str:
    """A reason without the case's own names, in one cell."""
    reason = outcome.reason.removeprefix(f"{outcome.name}: ").partition(" Status Message:")[0]
    reason = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", reason.replace(outcome.name, "")).partition("/onnxruntime_src")[0]
    return " ".join(reason.replace("|", "/").split())[:160]


if __name__ == "__main__":
    found = sorted(node_tests.run_all(node_tests.cases(), int(sys.argv[1]) if len(sys.argv) > 1 else 1), key=lambda outcome: outcome.name)
    PAGE.write_text(page(found), "utf-8")
    print(json.dumps([dataclasses.asdict(o) for o in found if o.status in ("wrong", "crashed")], indent=1))
