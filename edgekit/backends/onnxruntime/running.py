"""An artifact in ONNX Runtime on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgekit.errors import ConversionError, first_line, require
from edgekit.formats import Session
from edgekit.formats.onnx import OnnxSession
from edgekit.tensors import Signature

PRECISE = "session.x64quantprecision"
"""Keeps x86 processors without VNNI from saturating at 16 bits inside 8-bit products; those with it, and Arm, never do."""


def session(path: Path, signature: Signature, names: Mapping[str, str], optimized: Path | None = None) -> Session:
    """All optimizations, as on the device; one thread, so that results repeat. What the runtime made of the graph is written to `optimized`.

    Raises `ConversionError` when the runtime refuses the file.
    """
    ort = require("onnxruntime", extra="onnx", purpose="running an ONNX model")
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry(PRECISE, "1")
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    try:
        runtime = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises its own types
        raise ConversionError(f"ONNX Runtime refuses the artifact: {first_line(error)}") from error
    return OnnxSession(runtime, signature, _fails, names)


def _fails(error: Exception) -> ConversionError:
    return ConversionError(f"ONNX Runtime fails on the artifact: {first_line(error)}")


def left_in_float(optimized: Path) -> tuple[tuple[str, str], ...]:
    """Type and name of the operators of an optimized 8-bit graph that compute in float: they read what was dequantized, or one another."""
    import onnx

    graph = onnx.load(optimized, load_external_data=False).graph
    constants, real, found = {tensor.name for tensor in graph.initializer}, set[str](), []
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            real |= set(node.output) if node.input[0] not in constants else set()
        elif node.op_type != "QuantizeLinear" and real.intersection(node.input):
            real |= set(node.output)
            found.append((node.op_type, node.name or node.output[0]))
    return tuple(found)
