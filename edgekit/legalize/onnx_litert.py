"""What onnx2tf computes otherwise than ONNX defines, in a form that it takes."""

from __future__ import annotations

import dataclasses

from edgekit.legalize import onnx_resize, onnx_rules
from edgekit.legalize.onnx_prepare import Prepared


def legalize(prepared: Prepared) -> Prepared:
    """The prepared model with resizes in forms that LiteRT has, as a Gather of rows and columns, or as products."""
    model, notices = prepared.model, prepared.notices
    for rule in onnx_resize.RARE:
        if any(node.op_type == "Resize" for node in model.handle.graph.node):
            proto, count = onnx_rules.apply(rule, model.handle)
            model = dataclasses.replace(model, handle=proto) if count else model
            notices = (*notices, f"{rule.name}: {count} x: {rule.reason}") if count else notices
    return dataclasses.replace(prepared, model=model, notices=notices)
