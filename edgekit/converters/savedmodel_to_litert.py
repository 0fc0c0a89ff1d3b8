"""SavedModel -> LiteRT, with TensorFlow's own converter."""

from __future__ import annotations

from pathlib import Path

from edgekit.converters import _tf_to_litert
from edgekit.formats import Model

SOURCE = "savedmodel"
RESULT = "tflite"


def convert(model: Model, workdir: Path) -> Model:
    """Convert an opened model. Raises `ConversionError` naming operators that LiteRT does not have, and their layers."""
    return _tf_to_litert.convert(model, workdir)
