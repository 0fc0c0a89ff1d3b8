"""SavedModel -> ONNX, with tf2onnx."""

from __future__ import annotations

from pathlib import Path

from edgekit.converters import _tf_to_onnx
from edgekit.formats import Model

SOURCE = "savedmodel"
RESULT = "onnx"


def convert(model: Model, workdir: Path) -> Model:
    """Convert an opened model. Raises `ConversionError` when tf2onnx has no translation for an operator."""
    return _tf_to_onnx.convert(model, workdir)
