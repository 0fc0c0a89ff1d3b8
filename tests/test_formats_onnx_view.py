"""ONNX graphs seen as operators and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgekit.formats import _onnx_view
from edgekit.qdq import protos

onnx = pytest.importorskip("onnx")


def view(body: str, **values: Any) -> Any:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> net (float[1, 3, 8, 8] x) => (float y) {{ {body} }}'
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for name, value in values.items():
        protos.set_constant(model, name, np.asarray(value))
    return _onnx_view.graph(model, 1234)


def test_constants_are_tensors_whether_stored_or_computed_by_a_node() -> None:
    graph = view("k = Constant <value = float[2] {1.0, 2.0}> () c = Conv <strides = [2, 2]> (x, w) p = Pad (c, pads) y = Add (p, k)",
                 w=np.zeros((2, 3, 1, 1), np.float32), pads=np.array([0, 0, 0, 0, 0, 0, 0, 0]))  # fmt: skip
    assert [o.type for o in graph.operators] == ["Conv", "Pad", "Add"]
    sizes = {t.name: t.stored_bytes for t in graph.tensors if t.constant}
    assert sizes == {"w": 24, "pads": 64, "k": 8}
    conv, pad, _ = graph.operators
    assert conv.attributes["strides"] == [2, 2] and conv.macs == 2 * 16 * 3 and conv.version == 11
    assert pad.attributes["constant_inputs"] == {1: [0] * 8}
    assert graph.tensors[conv.outputs[0]].shape == (1, 2, 4, 4) and graph.file_bytes == 1234


def test_shapes_behind_the_runtimes_own_quantizers_are_known() -> None:
    graph = view("q = com.microsoft.QuantizeLinear (x, s, z) r = com.microsoft.DequantizeLinear (q, s, z) y = GlobalAveragePool (r)",
                 s=np.float32(0.5), z=np.uint16(7))  # fmt: skip
    tensors = {t.name: t for t in graph.tensors}
    assert (tensors["q"].dtype, tensors["q"].scale, tensors["q"].zero_point) == ("uint16", (0.5,), (7,))
    assert tensors["y"].shape == (1, 3, 1, 1)
    assert graph.operators[2].attributes["stored_inputs"] == ["uint16"] and graph.operators[0].custom


def test_open_shapes_and_unknown_operators_do_not_stop_the_reading() -> None:
    graph = view("n = Shape (x) y = Foo.Unknown (n)".replace("Foo.", "com.microsoft."))
    assert [o.type for o in graph.operators] == ["Shape", "Unknown"] and graph.operators[1].custom
