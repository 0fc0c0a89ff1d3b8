"""ONNX -> LiteRT, with onnx2tf in its own tool environment.

onnx2tf turns image tensors to NHWC inside. Inputs are told to keep their shape; how each output came out is found by running the result beside
the source, and what was turned is turned back inside the artifact, so that the app sees the source's layout.
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit import tools
from edgekit.converters import _litert_result, _tflite_edges
from edgekit.errors import ConversionError
from edgekit.formats import Model, onnx, tflite, tflite_flatbuffer
from edgekit.formats._onnx_graph import graphs, layer
from edgekit.legalize import onnx_litert, onnx_prepare
from edgekit.legalize.onnx_prepare import Prepared
from edgekit.tensors import Array, TensorSpec

SOURCE = "onnx"
RESULT = "tflite"

TIMEOUT_S = 1800
_TOLERANCE = 1e-3
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
_CONTROL_FLOW = ("If", "Loop", "Scan")


def convert(model: Model, workdir: Path) -> Model:
    """Convert an opened ONNX model.

    Raises `MissingPackageError` when onnx2tf is not installed, `ConversionError` naming the operator that cannot be converted.
    """
    python = tools.python("onnx2tf")
    prepared = onnx_litert.legalize(onnx_prepare.prepare(model))
    check_operators(prepared.model.handle, model.name)
    with tempfile.TemporaryDirectory(dir=workdir) as folder:
        made = _run(python, prepared, Path(folder))
        _refuse_custom(made, prepared)
        data = made.read_bytes()
    data, notices = _restore_edges(data, model, prepared)
    path = tflite_flatbuffer.write(workdir / f"{model.name}.tflite", data)
    return _litert_result.result(model, path, (*prepared.notices, *notices))


def check_operators(proto: Any, name: str) -> None:
    """Raise `ConversionError` for contributed operators and control flow that the preparation could not resolve."""
    for graph in graphs(proto.graph):
        for node in graph.node:
            if node.domain not in _STANDARD:
                what = f"{name}: custom operator {node.domain}::{node.op_type} in layer {layer(node)} has no counterpart in LiteRT"
                raise ConversionError(what, "export the model from standard ONNX operators, without the runtime's own fusions")
            if node.op_type in _CONTROL_FLOW:
                what = f"{name}: control flow ({node.op_type} in layer {layer(node)}) is left when all that is constant is folded"
                raise ConversionError(what, "export one branch, or unroll the loop")


def _run(python: Path, prepared: Prepared, folder: Path) -> Path:
    source, result = folder / "model.onnx", folder / "out"
    source.write_bytes(prepared.model.handle.SerializeToString())
    keep = [spec.name for spec in prepared.model.signature.inputs]
    command = [str(python), "-m", "onnx2tf", "-i", str(source), "-o", str(result), "-osd", "-nuo", "-kat", *keep]
    # a closed proxy: nothing may be downloaded while packaging, whatever the tool would like
    offline = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    quiet = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "ORT_DISABLE_TELEMETRY": "1"}
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "TMPDIR": str(folder), **quiet, **offline}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConversionError(f"onnx2tf did not finish {prepared.model.name} within {TIMEOUT_S} s") from error
    made = result / "model_float32.tflite"
    if done.returncode != 0 or not made.is_file():
        what = f"{prepared.model.name}: onnx2tf failed: {_reason(done.stdout + done.stderr, prepared.model.handle)}"
        newer = "" if tools.is_newest("onnx2tf") else "; with a Python 3.12 here, 'edgekit tools install onnx2tf' makes one that converts more"
        raise ConversionError(what, f"replace that operator, or keep it outside the model{newer}")
    return made


def _refuse_custom(made: Path, prepared: Prepared) -> None:
    """onnx2tf writes an operator it does not know as a custom one named `ONNX_...`."""
    graph = tflite.graph(made)
    tflite.refuse_unscaled(prepared.model.name, graph)
    for operator in graph.operators:
        if operator.custom:
            kind = operator.type.removeprefix("ONNX_")
            where = next((f"{n.op_type} in layer {layer(n)}" for n in prepared.model.handle.graph.node if n.op_type.upper() == kind), kind)
            hint = "replace that operator, or keep it outside the model"
            raise ConversionError(f"{prepared.model.name}: {where} has no counterpart in LiteRT", hint)


def _reason(said: str, proto: Any) -> str:
    """The operator onnx2tf stopped at, by the last node name in what it printed, and the last line of the error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "rror:" in line]
    named = [node for node in proto.graph.node if node.name and any(node.name in line for line in lines[-60:])]
    where = f"{named[-1].op_type} in layer {layer(named[-1])}: " if named else ""
    return where + (errors[-1] if errors else lines[-1] if lines else "it printed nothing")[:300]


def _restore_edges(data: bytes, model: Model, prepared: Prepared) -> tuple[bytes, tuple[str, ...]]:
    """The file with the source's names, order and layout at its edges, and a notice for each output that was turned back."""
    present = {spec.name for spec in prepared.model.signature.inputs}
    inputs = _tflite_edges.inputs_by_name(data, [prepared.inputs[s.name] for s in model.signature.inputs if prepared.inputs[s.name] in present])
    data, extra = _tflite_edges.add_inputs(data, [s for s in model.signature.inputs if prepared.inputs[s.name] not in present])
    tensors = {s.name: extra[s.name] if s.name in extra else inputs[prepared.inputs[s.name]] for s in model.signature.inputs}
    found = _outputs(data, model, tensors, prepared)
    turned = {name: order for name, (_, order) in found.items() if list(order) != sorted(order)}
    data, ends = _tflite_edges.transpose_outputs(data, {name: found[name] for name in turned})
    outputs = {name: ends.get(name, tensor) for name, (tensor, _) in found.items()}
    specs = model.signature
    data = _tflite_edges.rename(data, [(tensors[s.name], s.name) for s in specs.inputs], [(outputs[s.name], s.name) for s in specs.outputs])
    return data, tuple(f"output {name}: a TRANSPOSE inside the model keeps the source's layout" for name in turned)


def _outputs(data: bytes, model: Model, tensors: Mapping[str, int], prepared: Prepared) -> dict[str, tuple[int, tuple[int, ...]]]:
    """For each source output: the tensor that holds it, and the order of axes that turns it back, by comparing values."""
    feeds = [onnx_prepare.random_inputs(model.signature, seed) for seed in range(2)]
    session = onnx.session(model)
    right = [session.run(feed) for feed in feeds]
    got = [_tflite_edges.run(data, {tensors[name]: value for name, value in feed.items()}) for feed in feeds]
    named = _tflite_edges.signature_tensors(data)[1]
    found: dict[str, tuple[int, tuple[int, ...]]] = {}
    for spec in model.signature.outputs:
        free = [tensor for tensor in got[0] if tensor not in {t for t, _ in found.values()}] or list(got[0])
        label = prepared.outputs[spec.name]
        candidates = [named[label]] if label in named else free
        found[spec.name] = _match(spec, candidates, [values[spec.name] for values in right], got)
    return found


def _match(spec: TensorSpec, candidates: Sequence[int], right: Sequence[Array], got: Sequence[Mapping[int, Array]]) -> tuple[int, tuple[int, ...]]:
    import numpy as np

    best = (float("inf"), candidates[0], tuple(range(len(spec.shape))))
    for tensor in candidates:
        for order in _orders(spec.shape, got[0][tensor].shape):
            errors = [np.abs(run[tensor].transpose(order).astype(np.float64) - wanted).max(initial=0) for run, wanted in zip(got, right, strict=True)]
            best = min(best, (float(max(errors)), tensor, order))
    size = max(1.0, *(float(np.abs(wanted.astype(np.float64)).max(initial=0)) for wanted in right))
    if not best[0] <= _TOLERANCE * size:
        shapes = ", ".join(str(list(got[0][tensor].shape)) for tensor in candidates)
        found = f"differs by {best[0]:.3g}" if math.isfinite(best[0]) else f"has another shape, one of {shapes}"
        raise ConversionError(f"onnx → tflite: output {spec.name} {list(spec.shape)} {found} in what onnx2tf made")
    return best[1], best[2]


def _orders(wanted: Sequence[int], got: Sequence[int]) -> list[tuple[int, ...]]:
    """Orders of axes that give `wanted` from `got`: as it is first, then from channels-last, then any other of a small rank."""
    if len(wanted) != len(got):
        return []
    rank = len(wanted)
    tried = [tuple(range(rank)), (0, rank - 1, *range(1, rank - 1))] if rank > 2 else [tuple(range(rank))]
    tried += list(itertools.permutations(range(rank))) if rank <= 5 else []
    return [order for order in dict.fromkeys(tried) if tuple(got[axis] for axis in order) == tuple(wanted)]
