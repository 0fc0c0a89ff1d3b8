"""SavedModel -> Core ML's ML Program, with coremltools."""

from __future__ import annotations

from pathlib import Path

from edgekit.converters import _tf_to_mlprogram
from edgekit.formats import Model

SOURCE = "savedmodel"
RESULT = "mlprogram"


def convert(model: Model, workdir: Path) -> Model:
    """Convert an opened model. Raises `ConversionError` naming the operator that has no translation."""
    return _tf_to_mlprogram.convert(model, workdir)
