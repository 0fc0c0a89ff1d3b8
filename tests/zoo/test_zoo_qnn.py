"""Trained models on Hexagon's simulator: every operator there or named, parity against the float source, context binaries of two generations.

`python -m tests.zoo.test_zoo_qnn` measures all rows on as many samples each and writes their table into docs/hexagon.md. `FOLDER` behind it is
where rows are kept: a run that was interrupted goes on.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edgekit import converters, formats, hops, opset, parity, target
from edgekit.backends import Artifact, Candidate, Context, qnn
from edgekit.errors import ConversionError
from tests.zoo import table

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "hexagon.md"
START, END = "<!-- table: python -m tests.zoo.test_zoo_qnn -->\n", "<!-- end of table -->\n"
CALIBRATION, JUDGED = 8, 4
"""Samples to calibrate on, and others to judge on."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, the precision it is built in, and a floor under the SQNR of its worst output (below what is reached now, so that nothing gets worse
    unseen); or the operator that the HTP refuses. The test runs `judged` samples; the table has `JUDGED` of all.
    """

    precision: str
    least_db: float = 0.0
    refused: str = ""
    judged: int = JUDGED


CASES = {
    "mobilenet-v2": Case("fp16", 20.0),  # untrained weights: every layer's error reaches the output
    "ppocr-cls": Case("mixed", 21.0, judged=32),  # two probabilities: one in doubt counts for most of the error of a few samples
    "ppocr-det": Case("a16w8", 25.0, judged=1),  # half a minute each
    "silero-vad": Case("mixed", 25.0),  # powers in half precision
    "basic-pitch-onnx": Case("fp16", 20.0),  # its logarithm of powers spans more than a linear grid of 16 bits
    "efficientnet-lite0": Case("mixed", 22.0),
    "magika": Case("mixed", 40.0),  # variances in half precision
}
BOUNDED = "efficientnet-lite0"
"""The model that has a test of its own, with more samples."""

BOUNDS = {"a8w8": (26.0, 0.93), "mixed": (33.5, 0.97)}
"""SQNR (dB) and top-1 agreement on 64 natural crops, 32 for calibration."""

SIMULATED = 24
"""Crops for the simulator (two seconds each): those whose best two classes are closest."""

OLDER = ("hexagon-v73", "hexagon-v68")
"""The whole zoo is measured for these generations as well. v68 has no half precision, and its LSTM is refused by name."""

CELLS = [
    *((name, "hexagon-v75") for name in CASES if name != BOUNDED),
    *((name, "hexagon-v73") for name in CASES if name not in ("ppocr-det", "efficientnet-lite0")),  # which take a minute each
    *((name, "hexagon-v68") for name in ("ppocr-cls", "silero-vad")),
]
"""What the test measures."""


def case(name: str, target_name: str) -> Case:
    """A model on a generation."""
    asked = CASES[name]
    if target_name in OLDER:
        asked = dataclasses.replace(asked, judged=min(asked.judged, JUDGED))
    if target_name != "hexagon-v68":
        return asked
    asked = dataclasses.replace(asked, precision="a16w8", least_db=10.0) if asked.precision == "fp16" else asked
    return dataclasses.replace(asked, refused="does not take LSTM in layer") if name == "silero-vad" else asked


class Row(msgspec.Struct, frozen=True):
    """What came of one model: the worst output's SQNR (dB) on the simulator over `samples`, bytes of the context binary, or why there is none."""

    model: str
    target: str
    precision: str
    accelerated: int = 0
    operators: int = 0
    sqnr_db: float = 0.0
    context_bytes: int = 0
    samples: int = 0
    refused: str = ""


def measure(name: str, target_name: str, folder: Path, count: int = JUDGED) -> Row:
    """Build a model with natural samples and run it on the simulator beside its float source, on `count` other samples."""
    row, profile, asked = table.rows()[name], target.load(target_name), case(name, target_name)
    precision = asked.precision
    source = model = formats.open(row.reference, row.inputs)
    for number, hop in enumerate(converters.route(source.format, qnn.accepts)):
        (folder / str(number)).mkdir()
        model = hop.convert(model, folder / str(number))
    calibration, judged = (_samples(row, source, *which) for which in ((CALIBRATION, 1), (count, 7)))
    (folder / "build").mkdir()
    try:
        artifact = qnn.prepare(model, Context(profile, calibration, folder / "build"))(Candidate(precision, "second-order"))
    except ConversionError as error:
        return Row(name, target_name, precision, refused=error.message)
    assert (artifact.path / "context.onnx").stat().st_size > 0
    verdicts = opset.check(qnn.graph(artifact), profile)
    right = hops.run(formats.session(source), source.signature, judged)
    got = hops.run(qnn.emulate(artifact), artifact.signature, judged)
    loss = parity.compare_all(right, got, reference_specs=source.signature.outputs, other_specs=artifact.signature.outputs)
    worst = min((output.sqnr_db for output in loss if output.sqnr_db is not None), default=math.inf)
    taken = sum(verdict.status == "accelerated" for verdict in verdicts)
    return Row(name, target_name, precision, taken, len(verdicts), worst, (artifact.path / "context.onnx").stat().st_size, count)


def _samples(row: table.Row, source: formats.Model, count: int, seed: int) -> list[dict[str, Any]]:
    made = row.samples(count, seed)
    values = list(made.values())
    specs = enumerate(source.signature.inputs)
    named = [(spec, made.get(spec.name, values[min(place, len(values) - 1)])) for place, spec in specs]
    return [{spec.name: np.asarray(array[index]).reshape(spec.shape) for spec, array in named} for index in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target_name"), CELLS)
def test_zoo(name: str, target_name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    asked = case(name, target_name)
    row = measure(name, target_name, tmp_path, asked.judged)
    if asked.refused:
        assert asked.refused in row.refused
        return
    assert not row.refused
    assert row.accelerated == row.operators > 0
    assert row.sqnr_db >= asked.least_db


@pytest.mark.slow
def test_efficientnet_lite0_keeps_its_bounds(tmp_path: Path) -> None:
    """All crops by the QDQ files in ONNX Runtime; on the simulator those of `mixed` that a rounding could turn over, and a few of `a8w8`."""
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxruntime_qnn")
    row = table.rows()[BOUNDED]
    source = model = formats.open(row.reference)
    for hop in converters.route(source.format, qnn.accepts):
        model = hop.convert(model, tmp_path)
    calibration, judged = _samples(row, source, 32, 1), _samples(row, source, 64, 7)
    right = hops.run(formats.session(source), source.signature, judged)
    (tmp_path / "build").mkdir()
    make = qnn.prepare(model, Context(target.load("hexagon-v75"), calibration, tmp_path / "build"))
    (spec,), binaries = source.signature.outputs, {}
    for precision, (least_db, least_top1) in BOUNDS.items():
        artifact = make(Candidate(precision, "second-order"))
        session = ort.InferenceSession(str(artifact.path / "model.onnx"), providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        got = [{spec.name: session.run(None, {given.name: next(iter(sample.values()))})[0]} for sample in judged]
        (loss,) = parity.compare_all(right, got, reference_specs=source.signature.outputs)
        assert loss.sqnr_db is not None and loss.sqnr_db >= least_db, (precision, loss)
        assert loss.top1 is not None and loss.top1 >= least_top1, (precision, loss)
        _judge_simulated(artifact, judged, right, least_db - 1, least_top1 if precision == "mixed" else None)
        binaries[precision] = (artifact.path / "context.onnx").stat().st_size
    assert binaries["mixed"] <= 1.05 * binaries["a8w8"]


def _judge_simulated(artifact: Artifact, judged: list[dict[str, Any]], right: list[Any], least_db: float, least_top1: float | None) -> None:
    """SQNR on the simulator, and with `least_top1` the agreement over all crops, of which only the closest run there.

    The others count as agreeing where the best class leads by more than any class gained on the best one in the crops that ran.
    """
    (name,) = (spec.name for spec in artifact.signature.outputs)
    wanted = np.stack([sample[name].reshape(-1) for sample in right])
    leads = np.diff(np.sort(wanted, axis=1)[:, -2:], axis=1)[:, 0]
    run = np.argsort(leads, kind="stable")[: SIMULATED if least_top1 else 2]
    device = hops.run(qnn.emulate(artifact), artifact.signature, [judged[index] for index in run])
    (loss,) = parity.compare_all([right[index] for index in run], device, reference_specs=artifact.signature.outputs)
    assert loss.sqnr_db is not None and loss.sqnr_db >= least_db, (artifact.candidate, loss)
    if least_top1:
        errors = np.stack([sample[name].reshape(-1) for sample in device]) - wanted[run]
        gained = (errors - np.take_along_axis(errors, wanted[run].argmax(axis=1)[:, None], axis=1)).max()
        assert loss.top1 is not None
        agreeing = loss.top1 * len(run) + (np.delete(leads, run) > gained).sum()
        assert agreeing >= least_top1 * len(judged), (loss, gained)


def text(rows: list[Row]) -> str:
    """The table in Markdown."""
    lines = ["| model | target | precision | operators on the HTP | samples | SQNR | context binary |"]
    lines.append("| --- | --- | --- | --- | ---: | --- | --- |")
    for row in rows:
        figures = f"{row.accelerated} of {row.operators} | {row.samples} | {row.sqnr_db:.1f} dB | {row.context_bytes / 1e6:.2f} MB"
        lines.append(f"| {row.model} | {row.target} | {row.precision} | {f'{row.refused} | | |' if row.refused else figures} |")
    return "\n".join(lines) + "\n"


def main(folder: str = "") -> None:
    """Measure every row that `folder` does not hold, print it, and rewrite the table."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for target_name, name in itertools.product(("hexagon-v75", *OLDER), CASES):
            kept = Path(folder or scratch) / f"{target_name}-{name}.json"
            if not kept.exists():
                with tempfile.TemporaryDirectory(dir=scratch) as work:
                    kept.write_bytes(msgspec.json.encode(measure(name, target_name, Path(work))))
            rows.append(msgspec.json.decode(kept.read_bytes(), type=Row))
            print(rows[-1], flush=True)
    document = DOCUMENT.read_text()
    before, after = document.index(START) + len(START), document.index(END, document.index(START))
    DOCUMENT.write_text(document[:before] + text(rows) + document[after:])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
