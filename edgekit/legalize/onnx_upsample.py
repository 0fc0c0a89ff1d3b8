"""Resizes of old operator sets, which the version converter raises without saying where they sample."""

from __future__ import annotations

from typing import Any

from edgekit.formats._onnx_graph import constant, graphs


def as_it_was(proto: Any) -> None:
    """Say in every Resize of a graph raised from operator set 10 or older how Upsample and the Resize of that time sample, in place.

    They place by the ratio alone (`asymmetric`), and the nearest sample is the one below; ONNX Runtime takes the one above where it shrinks.
    """
    import onnx

    for graph in graphs(proto.graph):
        for node in graph.node:
            if node.op_type != "Resize":
                continue
            scales = constant(graph, node.input[2]) if len(node.input) > 2 else None
            shrinks = scales is not None and bool(scales.size) and float(scales.min()) < 1
            kept = [a for a in node.attribute if a.name not in ("coordinate_transformation_mode", "nearest_mode")]
            del node.attribute[:]
            made = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil" if shrinks else "floor"}
            node.attribute.extend([*kept, *(onnx.helper.make_attribute(name, value) for name, value in made.items())])
