"""A frozen TensorFlow function -> ONNX, with tf2onnx."""

from __future__ import annotations

from pathlib import Path

from edgekit.converters import _onnx_result
from edgekit.errors import ConversionError, require
from edgekit.formats import Model
from edgekit.formats._quiet import quiet

OPSET = 17


def convert(model: Model, workdir: Path) -> Model:
    """Convert a Keras model or SavedModel that was opened. Raises `ConversionError` when tf2onnx has no translation."""
    function = model.handle.function
    ends = ([t.name for t in function.inputs], [t.name for t in function.outputs])
    with quiet():
        tf2onnx = require("tf2onnx", extra="onnx", purpose="converting TensorFlow to ONNX")
        try:
            proto, _ = tf2onnx.convert.from_graph_def(
                function.graph.as_graph_def(add_shapes=True), input_names=ends[0], output_names=ends[1], opset=OPSET
            )
        except Exception as error:  # tf2onnx raises whatever TensorFlow raises
            raise ConversionError(f"{model.name}: tf2onnx failed: {(str(error).strip() or type(error).__name__).splitlines()[0][:300]}") from error
    return _onnx_result.result(model, proto, ends, workdir)
