"""Padding that ONNX states by its result, written out: converters know the common forms alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.formats._onnx_graph import value_shape

WINDOWS = ("Conv", "MaxPool", "AveragePool")


def write_out(proto: Any) -> None:
    """Replace `auto_pad=SAME_LOWER` and, of transposed convolutions, `output_shape` by `pads` where shapes are known, in place.

    Formulas: the ONNX operator schemas of Conv and ConvTranspose. `auto_pad=SAME_UPPER` is the padding that LiteRT has itself.
    """
    graph = proto.graph
    shapes = {value.name: value_shape(value) for value in (*graph.input, *graph.value_info, *graph.output)}
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        lower = "auto_pad" in attributes and attributes["auto_pad"].s == b"SAME_LOWER"
        if (node.op_type in WINDOWS and lower) or (node.op_type == "ConvTranspose" and "output_shape" in attributes):
            _write_out(node, attributes, shapes.get(node.input[0]), shapes.get(node.output[0]), weights)


def _write_out(node: Any, attributes: Mapping[str, Any], data: Any, result: Any, weights: Mapping[str, tuple[int, ...]]) -> None:
    kernel = list(attributes["kernel_shape"].ints) if "kernel_shape" in attributes else list(weights.get(node.input[1], ())[2:])
    if not kernel or data is None or result is None or min(*data, *result) < 0:
        return
    rank = len(kernel)

    def given(name: str, default: int) -> list[int]:
        return list(attributes[name].ints) if name in attributes else [default] * rank

    strides, dilations, more = given("strides", 1), given("dilations", 1), given("output_padding", 0)
    reach = [(k - 1) * e + 1 for k, e in zip(kernel, dilations, strict=True)]
    if node.op_type == "ConvTranspose":
        total = [s * (d - 1) + m + r - o for s, d, m, r, o in zip(strides, data[2:], more, reach, result[2:], strict=True)]
    else:
        total = [max((o - 1) * s + r - d, 0) for o, s, r, d in zip(result[2:], strides, reach, data[2:], strict=True)]
    upper = "auto_pad" in attributes and attributes["auto_pad"].s == b"SAME_UPPER"
    begin = [t // 2 if upper else t - t // 2 for t in total]
    if min(total) >= 0:
        _set_pads(node, [*begin, *(t - b for t, b in zip(total, begin, strict=True))])


def _set_pads(node: Any, pads: list[int]) -> None:
    import onnx

    kept = [attribute for attribute in node.attribute if attribute.name not in ("auto_pad", "output_shape", "pads")]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute("pads", pads)])
