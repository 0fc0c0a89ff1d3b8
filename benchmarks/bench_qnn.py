"""Hexagon artifacts beside the plain calls of onnxruntime: time to quantize and compile in one precision, and accuracy at equal bytes.

`python -m benchmarks.bench_qnn time` runs both sides in processes of their own, rounding to nearest; `accuracy` compares edgekit with the stock
configuration on natural crops, both on the HTP simulator (about two seconds a crop and precision) and with the CPU provider, and writes the rows
into docs/hexagon.md.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from edgekit import converters, formats, hops, parity, target
from edgekit.backends import Candidate, Context, qnn
from edgekit.hostruntimes import onnxruntime_qnn
from edgekit.tensors import Arrays
from tests.zoo import table

MODEL, CALIBRATION, HELD_OUT = "efficientnet-lite0", 32, 64
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "hexagon.md"
START, END = "<!-- table: python -m benchmarks.bench_qnn accuracy -->\n", "<!-- end of table -->\n"
HEAD = (
    "| precision | by | SQNR, simulator | top-1 | SQNR, CPU | top-1 | QDQ file, bytes | context binary, bytes |",
    "| --- | --- | --- | --- | --- | --- | ---: | ---: |",
)
LIMIT = 1.15


def main() -> None:
    """Run the benchmark that the first argument names, or both; the other names are the sides that `time` starts."""
    if len(sys.argv) < 2:
        timed()
        accuracy()
        return
    {"time": timed, "accuracy": accuracy, "plain": plain, "ours": ours}[sys.argv[1]](*sys.argv[2:])


def timed() -> None:
    """Print the ratio of wall times, each side a process that starts from the float ONNX file and the samples."""
    with tempfile.TemporaryDirectory() as scratch:
        model = str(converted(Path(scratch)))
        sides = ([sys.executable, "-m", "benchmarks.bench_qnn", side, model] for side in ("plain", "ours"))
        measure.side_by_side("QDQ and context binary, a8w8, rounded to nearest", *sides, limit=LIMIT)


def accuracy(folder: str = "") -> None:
    """Measure every precision and the stock files of as many bits, print the rows as they come, and write them into the document.

    With a `folder` what it holds of an interrupted run is taken from there.
    """
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(folder or scratch)
        path = work / "float.onnx" if (work / "float.onnx").exists() else converted(work)
        float_model, judged = formats.open(str(path)), samples(HELD_OUT, 7)
        right = hops.run(formats.session(float_model), float_model.signature, judged)
        rows = []
        for precision in ("mixed", "a8w8", "a16w8"):
            for side in ("edgekit", "stock") if precision != "mixed" else ("edgekit",):
                made = work / f"{precision}-{side}"
                if not made.exists():
                    _build(path, precision, side, made)
                figures = [_figures(_outputs(made, judged, provider), float_model, right) for provider in ("htp", "cpu")]
                weights, binary = ((made / file).stat().st_size for file in ("model.onnx", "context.onnx"))
                rows.append(f"| {precision} | {side} | {' | '.join(figures)} | {weights:,} | {binary:,} |")
                print(rows[-1], flush=True)
        document = DOCUMENT.read_text()
        before, after = document.index(START) + len(START), document.index(END, document.index(START))
        DOCUMENT.write_text(document[:before] + "\n".join([*HEAD, *rows]) + "\n" + document[after:])


def _build(path: Path, precision: str, side: str, made: Path) -> None:
    """`model.onnx` and `context.onnx` of one side in the folder `made`."""
    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        work = Path(scratch)
        if side == "edgekit":
            context = Context(target.load("hexagon-v75"), samples(CALIBRATION, 1), work)
            found = qnn.prepare(formats.open(str(path)), context)(Candidate(precision)).path
        else:
            found = work / "hexagon"
            found.mkdir()
            quantize_plainly(path, found / "model.onnx", int(precision[1 : precision.index("w")]))
            onnxruntime_qnn.session(found / "model.onnx", 75, 57, found / "context.onnx")
        found.rename(made)


def _outputs(made: Path, judged: list[Arrays], provider: str) -> list[Any]:
    """The outputs of every sample, kept beside the model: a run that was interrupted goes on."""
    kept = made / f"{provider}.npy"
    found = list(np.load(kept)) if kept.exists() else []
    if len(found) == len(judged):
        return found
    model = made / "model.onnx"
    session = onnxruntime_qnn.session(model, 75, 57) if provider == "htp" else ort_session(model)
    for sample in judged[len(found) :]:
        found.append(session.run(None, dict(sample))[0])
        np.save(kept, np.stack(found))
    return found


def ort_session(model: Path) -> Any:
    """The model on this machine's processor."""
    import onnxruntime as ort

    return ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])


def _figures(outputs: list[Any], model: formats.Model, right: Any) -> str:
    (spec,) = model.signature.outputs
    (loss,) = parity.compare_all(right, [{spec.name: array} for array in outputs], reference_specs=model.signature.outputs)
    return f"{loss.sqnr_db:.2f} dB | {100 * (loss.top1 or 0):.1f} %"


def plain(path: str) -> None:
    """The plain calls: preprocess, QNN's QDQ configuration, quantize, and a session that writes the context binary."""
    with tempfile.TemporaryDirectory() as scratch:
        quantize_plainly(Path(path), Path(scratch) / "qdq.onnx", 8)
        onnxruntime_qnn.session(Path(scratch) / "qdq.onnx", 75, 57, Path(scratch) / "context.onnx")


def ours(path: str) -> None:
    """The backend from the same file to the same result."""
    with tempfile.TemporaryDirectory() as scratch:
        context = Context(target.load("hexagon-v75"), samples(CALIBRATION, 1), Path(scratch))
        qnn.prepare(formats.open(path), context)(Candidate("a8w8", "nearest"))


def quantize_plainly(source: Path, made: Path, activations: int) -> None:
    """What onnxruntime's documentation does for the QNN provider, with its defaults."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._rows = iter(samples(CALIBRATION, 1))

        def get_next(self) -> Any:
            return next(self._rows, None)

    before = made.with_suffix(".pre.onnx")
    changed = qnn_preprocess_model(str(source), str(before))
    kind = QuantType.QUInt8 if activations == 8 else QuantType.QUInt16
    given = str(before if changed else source)
    quantize(given, str(made), get_qnn_qdq_config(given, Reader(), activation_type=kind, weight_type=QuantType.QInt8))


def converted(folder: Path) -> Path:
    """The float model as ONNX."""
    model = formats.open(table.rows()[MODEL].reference)
    for hop in converters.route(model.format, qnn.accepts):
        model = hop.convert(model, folder)
    import onnx

    onnx.save(model.handle, folder / "float.onnx")
    return folder / "float.onnx"


def samples(count: int, seed: int) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Natural crops by the ONNX model's input name."""
    made = table.rows()[MODEL].samples(count, seed)["inputs"]
    return [{"inputs": made[index].reshape(1, 3, 224, 224)} for index in range(count)]


if __name__ == "__main__":
    main()
