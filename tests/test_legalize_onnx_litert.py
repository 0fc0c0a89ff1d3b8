"""What is rewritten before onnx2tf sees it: values are those of the source, in ONNX Runtime, and the forms are ones that LiteRT has."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from edgekit import formats
from edgekit.formats import onnx as onnx_format
from edgekit.legalize import onnx_litert, onnx_prepare, onnx_resize

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

PLACES = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric")
ROUNDS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
TAKEN = {("asymmetric", "floor"), ("half_pixel", "round_prefer_ceil")}


def resized(opset: int, kind: str = "Resize", scales: tuple[float, ...] = (1, 1, 2, 1.5), **attributes: Any) -> formats.Model:
    """A Resize (or an old Upsample) of 6 x 8 places, opened."""
    shape = (1, 2, 6, 8)
    result = [int(size * scale) for size, scale in zip(shape, scales, strict=True)]
    constants = [onnx.numpy_helper.from_array(np.array(scales, np.float32), "scales")]
    inputs = ["x", "", "scales"] if opset > 10 else ["x", "scales"]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes) for name, sizes in (("x", shape), ("y", result))]
    graph = onnx.helper.make_graph([onnx.helper.make_node(kind, inputs, ["y"], **attributes)], "g", ends[:1], ends[1:], constants)
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    return onnx_format.from_proto(proto, "net", "0", {})


def check(source: formats.Model) -> list[Any]:
    """Nodes of the rewritten graph, which computes what the source does."""
    made = onnx_litert.legalize(onnx_prepare.prepare(source))
    for seed in range(2):
        feeds = onnx_prepare.random_inputs(source.signature, seed)
        right = formats.session(source).run(feeds)["y"]
        got = onnx_format.session(made.model).run({made.inputs[name]: value for name, value in feeds.items()})[made.outputs["y"]]
        np.testing.assert_allclose(got, right, atol=1e-5)
    return [node for node in made.model.handle.graph.node if node.op_type != "Constant"]


@pytest.mark.parametrize(("place", "how"), list(itertools.product(PLACES, ROUNDS)))
def test_the_nearest_sample_is_read_as_litert_has_it_or_gathered(place: str, how: str) -> None:
    nodes = check(resized(19, mode="nearest", coordinate_transformation_mode=place, nearest_mode=how))
    for node in nodes:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        form = (attributes.get("coordinate_transformation_mode", b"").decode(), attributes.get("nearest_mode", b"").decode())
        assert node.op_type == "Gather" or (node.op_type == "Resize" and form in TAKEN)


@pytest.mark.parametrize(
    "attributes", [{"antialias": 1}, {"exclude_outside": 1, "mode": "cubic"}, {"coordinate_transformation_mode": "half_pixel_symmetric"}]
)
def test_rare_forms_of_interpolation_become_products(attributes: dict[str, Any]) -> None:
    nodes = check(resized(19, scales=(1, 1, 0.5, 0.75), **({"mode": "linear"} | attributes)))
    assert {node.op_type for node in nodes} == {"MatMul", "Transpose"}


def test_common_forms_of_interpolation_are_left_alone() -> None:
    assert [node.op_type for node in check(resized(19, mode="linear"))] == ["Resize"]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 1.5, 2), (1, 1, 3, 1.25)])
@pytest.mark.parametrize(("opset", "kind"), [(9, "Upsample"), (10, "Resize")])
def test_resizes_of_old_operator_sets_sample_where_they_did(opset: int, kind: str, scales: tuple[float, ...], mode: str) -> None:
    check(resized(opset, kind, scales, mode=mode))


def test_an_old_resize_that_shrinks_samples_where_it_did() -> None:
    check(resized(10, scales=(1, 1, 0.5, 0.5), mode="nearest"))


@pytest.mark.parametrize(("scales", "attributes"), [
    ((1, 2, 2, 2), {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    ((2, 1.5, 1, 1), {"mode": "nearest"}), ((1, 2.5, 1, 1), {"mode": "linear"}), ((1, 1.5, 2, 1), {"mode": "linear"}),
    ((1, 0.5, 1, 1), {"mode": "nearest", "nearest_mode": "ceil"}),
])  # fmt: skip
@pytest.mark.parametrize("rules", [onnx_resize.ACROSS, onnx_resize.RARE])
def test_channels_and_samples_are_resized_as_well(rules: Any, scales: tuple[float, ...], attributes: dict[str, Any]) -> None:
    source = resized(19, scales=scales, **attributes)
    made = onnx_resize.written_out(onnx_prepare.prepare(source), rules)
    feeds = onnx_prepare.random_inputs(source.signature, 0)
    right = formats.session(source).run(feeds)["y"]
    got = onnx_format.session(made.model).run({made.inputs[name]: value for name, value in feeds.items()})[made.outputs["y"]]
    np.testing.assert_allclose(got, right, atol=1e-5)
    assert "Resize" not in {node.op_type for node in made.model.handle.graph.node}


def test_rows_and_columns_are_left_to_a_target_that_takes_every_form() -> None:
    source = resized(19, mode="nearest", nearest_mode="ceil")
    made = onnx_resize.written_out(onnx_prepare.prepare(source), onnx_resize.ACROSS)
    assert [node.op_type for node in made.model.handle.graph.node] == ["Resize"]
