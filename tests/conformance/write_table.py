"""Run every case through the Hexagon route and write `docs/onnx-conformance.md`: `python -m tests.conformance.write_table [--processes N]`.

Outcomes are kept in a folder, one JSON document a line and a file for each precision: a run that was cut off goes on where it ended, and
`--again OPERATOR...` measures the cases of some operators anew.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from tests.conformance import node_tests
from tests.conformance.node_tests import PRECISIONS, Outcome

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "onnx-conformance.md"

HEAD = """# ONNX operators on Hexagon

ONNX ships tests of single operators. Every one with float tensors ({count} cases of onnx {onnx}) was taken through the `{target}` route in three
precisions and run on Qualcomm's HTP simulator (onnxruntime-qnn {qnn}) with CPU fallback disabled. Weights and settings are constants of the
model, as exporters write them; each case is calibrated on its own inputs, and weights are rounded to nearest. Of a matrix product the error is a
share of the sum of its terms' magnitudes, since the chip multiplies two 16-bit matrices with 8 bits of one of them.

| outcome | {names} | meaning |
| --- | {dashes} | --- |
{counts}

To repeat: `nox -s conformance`, or `python -m tests.conformance.write_table --processes 2` where `edgekit[dev]` is installed (an hour of one core;
outcomes are kept in `build/conformance`, and a run that was cut off goes on). The tests hold a fixed part of it to «exact or refused».

## By operator

Cells are exact / refused. «written out» are the operator's definition in other operators. A reason stands for the first refused case.

| operator | {names} | why |
| --- | {dashes} | --- |
"""

MEANINGS = {
    "exact": "floats within 2 % (`a8w8`, `fp16`: 4 %) of the output's largest magnitude, or twice what the graph itself loses; integers equal",
    "refused": "no bundle is made, and the reason is given",
    "wrong": "computed something else, and nobody was told",
    "crashed": "ended without an answer",
}


def page(outcomes: Sequence[Outcome]) -> str:
    """The page, in Markdown."""
    shown = [precision for precision in PRECISIONS if any(o.precision == precision for o in outcomes)]
    counts = Counter((outcome.status, outcome.precision) for outcome in outcomes)
    head = HEAD.format(
        count=len({o.name for o in outcomes}),
        onnx=metadata.version("onnx"),
        qnn=metadata.version("onnxruntime-qnn"),
        target=node_tests.TARGET,
        names=" | ".join(f"`{precision}`" for precision in shown),
        dashes=" | ".join("---" for _ in shown),
        counts="\n".join(f"| {s} | {' | '.join(str(counts[s, p]) for p in shown)} | {MEANINGS[s]} |" for s in node_tests.STATUSES),
    )
    operators = {o.name: o.operator for o in outcomes if o.operator}  # a case that crashed does not say its own
    rows = [_row(operator, shown, outcomes, operators) for operator in sorted(set(operators.values()), key=str.lower)]
    bad = [f"- `{o.name}`, `{o.precision}`: {o.status}: {o.reason or f'off by {o.worst:.3g}'}" for o in outcomes if o.status in ("wrong", "crashed")]
    return head + "\n".join(rows) + ("\n\n## To be mended\n\n" + "\n".join(bad) if bad else "") + "\n"


def _row(operator: str, shown: Sequence[str], outcomes: Sequence[Outcome], operators: dict[str, str]) -> str:
    here = [outcome for outcome in outcomes if operators.get(outcome.name) == operator]
    counts = Counter((outcome.status, outcome.precision) for outcome in here)
    refused = [outcome for precision in shown for outcome in here if outcome.status == "refused" and outcome.precision == precision]
    cells = (f"{counts['exact', precision]} / {counts['refused', precision]}" for precision in shown)
    return f"| {operator} | {' | '.join(cells)} | {_plain(refused[0]) if refused else ''} |"


def _plain(outcome: Outcome) -> str:
    """A reason without the case's own names, in one cell."""
    reason = outcome.reason.removeprefix(f"{outcome.name}: ").partition(" Status Message:")[0]
    reason = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", reason.replace(outcome.name, "")).partition("/onnxruntime_src")[0]
    return " ".join(reason.replace("|", "/").split())[:160]


def measured(folder: Path, precision: str, processes: int, again: Sequence[str] = ()) -> list[Outcome]:
    """Every case in one precision; what `folder` holds already is read, but for the operators named `again`."""
    path = folder / f"{precision}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    known = [Outcome(**json.loads(line)) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
    found = {o.name: o for o in known if not {o.operator, o.operator.removesuffix(" (written out)")}.intersection(again)}
    path.write_text("".join(_line(o) for o in found.values()), "utf-8")
    with path.open("a", encoding="utf-8") as file:
        for outcome in node_tests.run_all([name for name in node_tests.cases() if name not in found], precision, processes):
            file.write(_line(outcome))
            file.flush()
            found[outcome.name] = outcome
    return [found[name] for name in node_tests.cases()]


def _line(outcome: Outcome) -> str:
    return json.dumps(dataclasses.asdict(outcome)) + "\n"


def main() -> None:
    """Measure what is not measured yet, and write the page."""
    parser = argparse.ArgumentParser(description="ONNX's operator tests through the Hexagon route")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "conformance")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="only these; the page holds what was measured")
    parser.add_argument("--again", nargs="+", default=(), metavar="OPERATOR", help="measure the cases of these operators anew")
    asked = parser.parse_args()
    for precision in asked.precision:
        measured(asked.results, precision, asked.processes, asked.again)
    present = [precision for precision in PRECISIONS if (asked.results / f"{precision}.jsonl").is_file()]
    outcomes = [o for precision in present for o in measured(asked.results, precision, asked.processes)]
    PAGE.write_text(page(outcomes), "utf-8")
    print(json.dumps([dataclasses.asdict(o) for o in outcomes if o.status in ("wrong", "crashed")], indent=1))


if __name__ == "__main__":
    main()
