"""What onnx2tf computes otherwise than ONNX defines, in a form that it takes."""

from __future__ import annotations

from edgekit.legalize import onnx_resize
from edgekit.legalize.onnx_prepare import Prepared


def legalize(prepared: Prepared) -> Prepared:
    """The prepared model with resizes in forms that LiteRT has, as a Gather of rows and columns, or as products."""
    return onnx_resize.written_out(prepared, onnx_resize.RARE)
