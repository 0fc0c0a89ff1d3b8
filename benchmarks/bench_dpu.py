"""Power-of-two int8 beside AMD Quark's XINT8 on the same model and samples: fidelity on held-out samples, and time; and the speed of the
integer reference beside ONNX Runtime on the same file.

python -m benchmarks.bench_dpu MODEL CALIBRATION.npz HELD_OUT.npz    (needs amd-quark: pip install 'edgekit[bench]')

Without arguments: EfficientNet-Lite0 of the zoo with 16 and 24 natural crops.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgekit import formats, samples, target
from edgekit.backends import Candidate, Context, vitis
from edgekit.errors import require
from edgekit.legalize import onnx_prepare
from edgekit.virtual.dpu import reader


def median_ms(run: Callable[[], Any], count: int = 9) -> float:
    """Median time of `count` runs after two."""
    times = []
    for _ in range(count + 2):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return float(np.median(times[2:]))


def onnx_runtime(path: Path) -> Any:
    """A session of one thread with all optimizations: its own int8 kernels."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class _Reader:
    """Calibration samples as Quark asks for them."""

    def __init__(self, feeds: Sequence[dict[str, Any]]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def by_quark(source: Path, made: Path, feeds: Sequence[dict[str, Any]]) -> None:
    """Quark's XINT8 with its defaults."""
    from quark.onnx import ModelQuantizer
    from quark.onnx.quantization.config import Config, get_default_config

    with contextlib.chdir(made.parent):  # it leaves a table in the current folder
        ModelQuantizer(Config(global_quant_config=get_default_config("XINT8"))).quantize_model(str(source), str(made), _Reader(feeds))


def fidelity(wanted: list[Any], got: list[Any]) -> dict[str, float]:
    """SQNR in dB and the share of equal largest outputs."""
    signal, noise = (sum(float((x**2).sum()) for x in side) for side in (wanted, [w - g for w, g in zip(wanted, got, strict=True)]))
    agreed = float(np.mean([w.argmax() == g.argmax() for w, g in zip(wanted, got, strict=True)]))
    return {"sqnr_db": 10 * float(np.log10(signal / max(noise, 1e-30))), "top1": agreed}


def main() -> None:
    """Print ratios, then one JSON document. Takes a model and two files of samples, or nothing."""
    require("quark.onnx", extra="bench", purpose="comparing with AMD Quark")
    model, calibration, held_out = _given(*sys.argv[1:4]) if len(sys.argv) > 3 else _zoo()
    with tempfile.TemporaryDirectory() as scratch:
        figures = _measured(model, calibration, held_out, Path(scratch))
    ours, quark = figures["edgekit"], figures["quark"]
    print(f"packaging: {ours['build_s']:.1f} s, Quark {quark['build_s']:.1f} s: ratio {ours['build_s'] / quark['build_s']:.2f}")
    print(f"fidelity: {ours['sqnr_db']:.1f} dB, {ours['top1']:.1%} top-1; Quark {quark['sqnr_db']:.1f} dB, {quark['top1']:.1%}")
    print(f"integer reference: {figures['reference_ms']:.1f} ms, ONNX Runtime {figures['onnxruntime_ms']:.1f} ms: ratio {figures['ratio']:.2f}")
    print(json.dumps(figures))


def _given(model: str, calibration: str, held_out: str) -> tuple[formats.Model, list[Any], list[Any]]:
    opened = formats.open(model)
    data, judged = (samples.load(path, opened.signature, None) for path in (calibration, held_out))
    return opened, [*data.train, *data.held_out], [*judged.train, *judged.held_out]


def _zoo() -> tuple[formats.Model, list[Any], list[Any]]:
    from edgekit import converters
    from tests.zoo import table

    row = table.rows()["efficientnet-lite0"]
    model = formats.open(row.reference, row.inputs)
    folder = Path(tempfile.mkdtemp(prefix="edgekit-bench-"))
    for number, hop in enumerate(converters.route(model.format, vitis.accepts)):
        (folder / str(number)).mkdir()
        model = hop.convert(model, folder / str(number))
    name = model.signature.inputs[0].name
    calibration, held_out = ([{name: x} for x in next(iter(row.samples(count, seed).values()))] for count, seed in ((16, 1), (24, 7)))
    return model, calibration, held_out


def _measured(model: formats.Model, calibration: Sequence[Any], held_out: Sequence[Any], folder: Path) -> dict[str, Any]:
    name, floats = model.signature.inputs[0].name, formats.session(model)
    wanted = [next(iter(floats.run(sample).values())).ravel() for sample in held_out]
    start = time.perf_counter()
    artifact = vitis.prepare(model, Context(target.load("fpga-dpuczdx8g"), calibration, folder))(Candidate("w8a8"))
    ours_s = time.perf_counter() - start
    file, emulated = artifact.path / vitis.MODEL_FILE, vitis.emulate(artifact)
    ours = fidelity(wanted, [next(iter(emulated.run(sample).values())).ravel() for sample in held_out])
    program, session = reader.read(file), onnx_runtime(file)
    feeds = {program.signature.inputs[0].name: held_out[0][name]}
    reference_ms, theirs_ms = median_ms(lambda: program.run(feeds)), median_ms(lambda: session.run(None, feeds))
    prepared = onnx_prepare.prepare(model)
    entry = prepared.inputs[name]
    (folder / "source.onnx").write_bytes(prepared.model.handle.SerializeToString())
    start = time.perf_counter()
    by_quark(folder / "source.onnx", folder / "quark.onnx", [{entry: sample[name]} for sample in calibration])
    quark_s = time.perf_counter() - start
    quark = onnx_runtime(folder / "quark.onnx")
    theirs = fidelity(wanted, [quark.run(None, {entry: sample[name]})[0].ravel() for sample in held_out])
    return {
        "samples": len(calibration),
        "edgekit": {"build_s": ours_s, **ours},
        "quark": {"build_s": quark_s, **theirs},
        "reference_ms": reference_ms,
        "onnxruntime_ms": theirs_ms,
        "ratio": reference_ms / theirs_ms,
    }


if __name__ == "__main__":
    main()
