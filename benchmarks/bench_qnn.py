"""Hexagon artifacts beside the plain calls of onnxruntime: time to quantize and compile in one precision, and accuracy at equal bytes.

`python -m benchmarks.bench_qnn time` runs both sides in processes of their own, rounding to nearest; `accuracy` compares the QDQ files of the
stock configuration and of edgekit on natural crops, in one process, with the CPU provider.
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
from edgekit.tensors import Arrays
from tests.zoo import table

MODEL, CALIBRATION, HELD_OUT = "efficientnet-lite0", 16, 64
LIMIT = 1.15


def main() -> None:
    """Run the benchmark that the first argument names; the other names are the sides that `time` starts."""
    {"time": timed, "accuracy": accuracy, "plain": plain, "ours": ours}[sys.argv[1]](*sys.argv[2:])


def timed() -> None:
    """Print the ratio of wall times, each side a process that starts from the float ONNX file and the samples."""
    with tempfile.TemporaryDirectory() as scratch:
        model = str(converted(Path(scratch)))
        sides = ([sys.executable, "-m", "benchmarks.bench_qnn", side, model] for side in ("plain", "ours"))
        measure.side_by_side("QDQ and context binary, a8w8, rounded to nearest", *sides, limit=LIMIT)


def accuracy() -> None:
    """Print bytes, SQNR and top-1 agreement of both sides' QDQ files."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        path = converted(folder)
        float_model = formats.open(str(path))
        judged = samples(HELD_OUT, 7)
        right = hops.run(formats.session(float_model), float_model.signature, judged)
        for activations in (8, 16):
            stock = folder / f"stock{activations}.onnx"
            quantize_plainly(path, stock, activations)
            (folder / str(activations)).mkdir()
            artifact = qnn.prepare(float_model, Context(target.load("hexagon-v75"), samples(CALIBRATION, 1), folder / str(activations)))
            made = artifact(Candidate(f"a{activations}w8")).path / "model.onnx"
            for side, file in (("stock", stock), ("edgekit", made)):
                print(f"a{activations}w8 {side}: {file.stat().st_size} bytes, {_figures(file, float_model, right, judged)}", flush=True)


def _figures(file: Path, model: formats.Model, right: Any, judged: list[Arrays]) -> str:
    import onnxruntime as ort

    session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    got = [dict(zip(names, session.run(names, dict(sample)), strict=True)) for sample in judged]
    (loss,) = parity.compare_all(right, got, reference_specs=model.signature.outputs)
    return f"{loss.sqnr_db:.2f} dB, top-1 {loss.top1:.3f}"


def plain(path: str) -> None:
    """The plain calls: preprocess, QNN's QDQ configuration, quantize, and a session that writes the context binary."""
    from edgekit.hostruntimes import onnxruntime_qnn

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
