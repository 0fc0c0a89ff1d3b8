"""ONNX's own single-operator tests through the Hexagon route, on the HTP simulator: `python -m tests.conformance.node_tests PRECISION NAME...`.

Each case is calibrated on its own inputs, packaged in one precision, run on the simulator with CPU fallback disabled, and compared with the
outputs that ship with the test.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import queue
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

TARGET = "hexagon-v75"
PRECISIONS = ("a16w8", "a8w8", "fp16")
TOLERANCE = {"a16w8": 0.02, "a8w8": 0.04, "fp16": 0.04}
"""Largest error of a float output, as a share of its largest magnitude: ten steps of 8 bits; in half precision the chip approximates curves to
1 %; with 16 bits, the coarser steps inside
(the chip multiplies two 16-bit matrices with 8 bits of one of them). Of a matrix product, as a share of the sum of its terms' magnitudes, which
cancel out. Where the artifact's graph itself loses more (large ranges, steep functions), twice what it loses in ONNX Runtime, or in half
precision in onnx's reference, as long as packaging lets it pass.
"""

WEIGHTED = frozenset(("Conv", "ConvTranspose", "Gemm", "BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization",
                      "RMSNormalization", "PRelu", "Clip", "Resize", "Upsample", "Pad", "LSTM", "GRU", "RNN"))  # fmt: skip
"""Operators whose inputs behind the first are weights or settings: exported models hold them as constants, and so do these cases."""

STATUSES = ("exact", "refused", "wrong", "crashed")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one case. `worst` is the simulator's largest error as a share of the output's largest magnitude, `lost` that of the same
    quantized file in ONNX Runtime; `reason` of a refusal or crash.
    """

    name: str
    precision: str
    operator: str
    opset: int
    status: str
    reason: str = ""
    worst: float = 0.0
    lost: float = 0.0


@functools.cache
def cases() -> dict[str, Path]:
    """The float cases by name: tensors only, float32 among inputs or outputs, standard operators."""
    found = {case.name: Path(case.model_dir or "") for case in load_model_tests(kind="node")}
    return {name: folder for name, folder in sorted(found.items()) if _is_float(onnx.load(folder / "model.onnx"))}


def _is_float(model: Any) -> bool:
    ends = (*model.graph.input, *model.graph.output)
    if not all(value.type.HasField("tensor_type") for value in ends) or {o.domain for o in model.opset_import} - {"", "ai.onnx"}:
        return False
    return any(value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for value in ends)


def run(name: str, precision: str) -> Outcome:
    """One case, in this process."""
    folder = cases()[name]
    model = onnx.load(folder / "model.onnx")
    operator, opset = _operator(name, model), max(o.version for o in model.opset_import)
    wanted = _data(folder, model, "output")
    inputs = _bind(model, _data(folder, model, "input"))
    from edgekit.errors import EdgekitError

    outcome = functools.partial(Outcome, name, precision, operator, opset)
    try:
        got, cpu, notices = _through_hexagon(model, name, precision, inputs)
    except EdgekitError as error:
        return outcome("refused", error.message)
    except Exception as error:
        return outcome("crashed", f"{type(error).__name__}: {str(error)[:200]}")
    if any("training mode" in notice for notice in notices):
        return outcome("refused", "training mode: switched off with a notice, so the random mask of the test is not computed")
    size = _terms(operator, list(inputs.values()))
    worst, lost = (max((_error(values[key], value, size) for key, value in wanted.items()), default=0.0) for values in (got, cpu))
    if worst <= TOLERANCE[precision]:
        return outcome("exact", "", worst, lost)
    barred = _barred(precision, got, wanted)
    if barred:
        return outcome("refused", f"not packaged: {barred}", worst, lost)
    return outcome("exact" if worst <= 2 * lost < float("inf") else "wrong", "", worst, lost)


def _barred(precision: str, got: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Packaging weighs every build against the float source: why this one is below the profile's bound and becomes no bundle, or nothing."""
    from edgekit import parity, target
    from edgekit.tensors import TensorSpec

    specs = tuple(TensorSpec(key, value.shape, str(value.dtype)) for key, value in wanted.items())
    loss = parity.compare_all([wanted], [got], reference_specs=specs)
    findings = parity.judge(loss, target.load(TARGET).tolerance.quantization[precision])
    return next((finding.message for finding in findings if finding.severity == "error"), "")


def _operator(name: str, model: Any) -> str:
    """The operator under test; for its definition in other operators, the one that the case without `_expanded` tests."""
    base, written_out, _ = name.partition("_expanded")
    if written_out and base in cases():
        return f"{_operator(base, onnx.load(cases()[base] / 'model.onnx'))} (written out)"
    kinds = [node.op_type for node in model.graph.node if node.op_type != "Constant"]
    return kinds[0] if kinds else "Constant"


def _data(folder: Path, model: Any, side: str) -> dict[str, Any]:
    values = model.graph.input if side == "input" else model.graph.output
    files = [folder / "test_data_set_0" / f"{side}_{index}.pb" for index in range(len(values))]
    return {value.name: numpy_helper.to_array(onnx.load_tensor(str(file))) for value, file in zip(values, files, strict=True) if file.is_file()}


def _bind(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Make settings (integers behind the first input) and weights constants of the model; what is left is fed."""
    first = model.graph.input[0].name if model.graph.input else ""
    settings = {name for node in model.graph.node if node.op_type in WEIGHTED for name in node.input[1:]}
    bound = {n for n, value in inputs.items() if n != first and (n in settings or value.dtype.kind in "iub")}
    model.graph.initializer.extend(numpy_helper.from_array(inputs[name], name) for name in bound)
    kept = [value for value in model.graph.input if value.name not in bound]
    copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    del model.graph.input[:]
    model.graph.input.extend(copies)
    return {name: value for name, value in inputs.items() if name not in bound}


def _through_hexagon(model: Any, name: str, precision: str, inputs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
    """Outputs of the simulator, outputs of the same quantized file in ONNX Runtime, and what the user is told."""
    from edgekit import formats, target
    from edgekit.backends import Candidate, Context, qnn
    from edgekit.backends.onnxruntime import running
    from edgekit.formats import onnx as format_onnx

    shapes = {key: value.shape for key, value in inputs.items()}
    opened = format_onnx.from_proto(model, name, "", shapes)
    formats.session(opened).run(inputs)
    with tempfile.TemporaryDirectory() as scratch:
        artifact = qnn.prepare(opened, Context(target.load(TARGET), [inputs], Path(scratch)))(Candidate(precision, "nearest"))
        got = qnn.emulate(artifact).run(inputs)
        if precision == "fp16":
            return got, _in_half(artifact, inputs), opened.notices
        return got, running.session(artifact.path / "model.onnx", artifact.signature, artifact.runtime_names).run(inputs), opened.notices


def _in_half(artifact: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """What the same graph gives in half precision, operator by operator, in onnx's reference: every device of half precision loses as much."""
    from onnx.reference import ReferenceEvaluator
    from onnxruntime.transformers import float16

    made = float16.convert_float_to_float16(onnx.load(artifact.path / "model.onnx"), keep_io_types=False, op_block_list=[])
    names = {spec.name: artifact.runtime_names.get(spec.name, spec.name) for spec in (*artifact.signature.inputs, *artifact.signature.outputs)}
    present = {value.name for value in made.graph.input}
    halves = {name: value.astype(np.float16) if value.dtype == np.float32 else value for name, value in inputs.items()}
    feed = {names[name]: value for name, value in halves.items() if names[name] in present}
    outputs = [spec.name for spec in artifact.signature.outputs]
    with np.errstate(all="ignore"):
        values = ReferenceEvaluator(made).run([names[name] for name in outputs], feed)
    wide = (value.astype(np.float32) if value.dtype == np.float16 else value for value in values)
    return dict(zip(outputs, wide, strict=True))


def _terms(operator: str, inputs: list[Any]) -> float:
    """The largest sum of magnitudes that a matrix product adds up; 0 for other operators."""
    return float((np.abs(inputs[0]) @ np.abs(inputs[1])).max()) if operator == "MatMul" and len(inputs) == 2 else 0.0


def _error(got: Any, wanted: Any, least_size: float = 0.0) -> float:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return float("inf")
    if not np.issubdtype(wanted.dtype, np.floating):
        return 0.0 if np.array_equal(got, wanted) else float("inf")
    finite = np.isfinite(wanted)
    if not np.array_equal(got[~finite], wanted[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    size = max(float(np.abs(wanted[finite]).max()), least_size)
    worst = float(np.abs(got[finite].astype(np.float64) - wanted[finite]).max())
    return worst / size if size else worst


def run_all(names: Iterable[str], precision: str, processes: int = 1) -> Iterator[Outcome]:
    """Cases in processes of their own, so that a crash of the simulator costs one case. Unordered, each as soon as it is there."""
    listed, found = list(names), queue.SimpleQueue[Outcome | None]()

    def work(part: list[str]) -> None:
        try:
            for outcome in _in_process(part, precision):
                found.put(outcome)
        finally:
            found.put(None)

    with ThreadPoolExecutor(processes) as pool:
        done = [pool.submit(work, listed[start::processes]) for start in range(processes)]
        for _ in done:
            yield from iter(found.get, None)
    for part in done:
        part.result()


def _in_process(names: list[str], precision: str) -> Iterator[Outcome]:
    left = list(names)
    while left:
        command = [sys.executable, "-m", __name__, precision, *left]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    yield Outcome(**json.loads(line))
                    left.pop(0)
        if left:
            yield Outcome(left[0], precision, "", 0, "crashed", f"the process ended with {process.returncode}")
            left.pop(0)


if __name__ == "__main__":
    for case in sys.argv[2:]:
        print(json.dumps(dataclasses.asdict(run(case, sys.argv[1]))), flush=True)
