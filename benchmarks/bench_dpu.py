"""Speed of the DPU's integer reference beside ONNX Runtime on the same QDQ file, and packaging time.

python -m benchmarks.bench_dpu MODEL [DATA.npz]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgekit import formats, samples, target
from edgekit.backends import Candidate, Context, vitis
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


def main() -> None:
    """Print one JSON document."""
    model = formats.open(sys.argv[1])
    data = samples.load(sys.argv[2] if len(sys.argv) > 2 else None, model.signature, None)
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        context = Context(target.load("fpga-dpuczdx8g"), data.train or data.random, Path(scratch))
        artifact = vitis.prepare(model, context)(Candidate("w8a8"))
        build_s = time.perf_counter() - start
        file = artifact.path / vitis.MODEL_FILE
        program, session = reader.read(file), onnx_runtime(file)
        feeds = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in program.signature.inputs}
        ours, theirs = median_ms(lambda: program.run(feeds)), median_ms(lambda: session.run(None, feeds))
    figures = {"build_s": build_s, "samples": len(context.calibration), "reference_ms": ours, "onnxruntime_ms": theirs, "ratio": ours / theirs}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
