"""LiteRT -> ONNX, with tf2onnx."""

from __future__ import annotations

from pathlib import Path

from edgekit.converters import _onnx_result, _tflite_edges
from edgekit.errors import ConversionError, require
from edgekit.formats import Model, tflite, tflite_flatbuffer
from edgekit.formats._quiet import quiet

SOURCE = "tflite"
RESULT = "onnx"

OPSET = 17


def convert(model: Model, workdir: Path) -> Model:
    """Convert a float .tflite file that was opened. Raises `ConversionError` when tf2onnx has no translation for an operator."""
    if model.path is None:
        raise ConversionError(f"{model.name}: not a file")
    plain = tflite.to_float(model.path, workdir / f"{model.name}.plain.tflite")
    data, entry = plain.read_bytes(), tflite.open(str(plain), {spec.name: spec.shape for spec in model.signature.inputs}).handle.entry
    plain.unlink()
    # distinct names for the ends: in a .tflite file a tensor's name need not be its input's or output's name
    inputs = [(port.tensor, f"edgekit_input_{i}") for i, port in enumerate(entry.inputs)]
    outputs = [(port.tensor, f"edgekit_output_{i}") for i, port in enumerate(entry.outputs)]
    named = tflite_flatbuffer.write(workdir / f"{model.name}.named.tflite", _tflite_edges.rename_tensors(data, [*inputs, *outputs]))
    ends = ([name for _, name in inputs], [name for _, name in outputs])
    with quiet():
        tf2onnx = require("tf2onnx", extra="onnx", purpose="converting TFLite to ONNX")
        try:
            proto, _ = tf2onnx.convert.from_tflite(str(named), input_names=ends[0], output_names=ends[1], opset=OPSET)
        except Exception as error:  # tf2onnx raises whatever its parts raise
            raise ConversionError(f"{model.name}: tf2onnx failed: {(str(error).strip() or type(error).__name__).splitlines()[0][:300]}") from error
        finally:
            named.unlink()
    return _onnx_result.result(model, proto, ends, workdir)
