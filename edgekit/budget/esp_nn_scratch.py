"""Scratch that ESP-NN's kernels for ESP32-S3 ask of TFLM's arena: padded and aligned copies of inputs and filters.

Sizes are those of `esp_nn_get_*_scratch_size_esp32s3` (ESP-NN 1.2.3, `src/convolution`, `src/softmax`), as esp-tflite-micro 1.4.0
(`micro/kernels/esp_nn`) requests them, for int8 alone. Earlier 1.x ask for less in most places.
"""

from __future__ import annotations

import dataclasses
import math

from edgekit.graph import Graph, Operator

_STRIPS_ABOVE_BYTES, _TILES_ABOVE_BYTES = 40 << 10, 48 << 10
"""Above these a depthwise layer copies the rows under its filter instead of its whole input."""


@dataclasses.dataclass(frozen=True)
class _Layer:
    """Heights, widths and channels of a layer; `pads` are those before the first row and column."""

    given: tuple[int, int, int]
    filters: tuple[int, int]
    made: tuple[int, int, int]
    strides: tuple[int, int]
    pads: tuple[int, int]
    multiplier: int

    @property
    def over(self) -> tuple[int, int]:
        """Rows and columns that the kernels take the filter to reach behind the input, negative where it stops before the end."""
        found = [m * s + f - 1 - g for m, s, f, g in zip(self.made, self.strides, self.filters, self.given, strict=False)]
        return found[0], found[1]


def scratch_bytes(graph: Graph, operator: Operator) -> int:
    """What one operator asks for while it runs: 0 for one without such a kernel, or of other than int8."""
    kind = operator.type
    if kind not in ("CONV_2D", "DEPTHWISE_CONV_2D", "SOFTMAX") or graph.tensors[operator.inputs[0]].dtype != "int8":
        return 0
    if kind == "SOFTMAX":
        return 4 * (graph.tensors[operator.inputs[0]].shape[1:2] or (0,))[0] if graph.tensors[operator.outputs[0]].dtype == "int8" else 0
    layer = _layer(graph, operator)
    return _convolution(layer) if kind == "CONV_2D" else _depthwise(layer)


def _layer(graph: Graph, operator: Operator) -> _Layer:
    given, filters, made = (graph.tensors[i].shape for i in (operator.inputs[0], operator.inputs[1], operator.outputs[0]))
    known = operator.attributes
    strides, dilations = (known["stride_h"], known["stride_w"]), (known.get("dilation_hFactor", 1), known.get("dilation_wFactor", 1))
    reach = [(f - 1) * d + 1 for f, d in zip(filters[1:3], dilations, strict=True)]
    same = known["padding"] == "SAME"
    pads = [max(0, (m - 1) * s + r - g) // 2 if same else 0 for m, s, r, g in zip(made[1:3], strides, reach, given[1:3], strict=True)]
    multiplier = known.get("depth_multiplier", 1)
    return _Layer((given[1], given[2], given[3]), (filters[1], filters[2]), (made[1], made[2], made[3]), strides, (pads[0], pads[1]), multiplier)


def _convolution(layer: _Layer) -> int:
    height, width, channels = layer.given
    made = layer.made[2]
    if layer.filters == layer.strides == (1, 1) and layer.pads == (0, 0):
        whole = _up(channels, 8)
        copied = height * width * whole if channels % 8 else 0
        return copied + whole * made + (16 * whole if height * width >= 8 else 0) + 64
    row, window = layer.filters[1] * channels, math.prod(layer.filters) * channels
    if row < 16 <= window:  # the window as one row
        return 4 * made + (made + 1) * _up(window, 16) + 96
    padded = _padded(layer, 2 * layer.pads[0], 2 * layer.pads[1], channels) if any(layer.pads) else 0
    below, beside = (max(0, over) for over in layer.over)
    reached = _padded(layer, below, beside, channels) if below or beside else 0
    filters = math.prod(layer.filters) * _up(channels, 16) * made + _up(row, 16) * layer.filters[0] * made
    return padded + reached + filters + 4 * made + 64


def _depthwise(layer: _Layer) -> int:
    channels = layer.given[2]
    filters, given = math.prod(layer.filters) * channels * layer.multiplier, math.prod(layer.given)
    if layer.multiplier == 1 and channels % 8 == 0:
        return _by_eights(layer, filters)
    if layer.multiplier == 1 and channels > 3:
        whole = _up(channels, 8)
        parts = (2 * math.prod(layer.filters) * whole, 2 * given // channels * whole, math.prod(layer.made[:2]) * whole)
        return sum(_up(part, 16) for part in parts) + 12 * whole + 16
    return 2 * (filters + given) + 32 if layer.multiplier % 4 == 0 else 32


def _by_eights(layer: _Layer, filters: int) -> int:
    """A depthwise layer whose channels are a multiple of 8, each with one filter."""
    channels, wide = layer.given[2], 2 * (filters + math.prod(layer.given)) + 32
    if layer.filters != (3, 3):
        rows = 2 * layer.given[1] * layer.filters[0] * channels
        return wide if wide - 32 <= _TILES_ABOVE_BYTES else 2 * filters + rows + 32
    if channels == 8:
        return wide
    if channels % 16:
        whole = _up(channels, 16)
        below, beside = (2 * pad + max(0, over) for pad, over in zip(layer.pads, layer.over, strict=True))
        return 9 * whole + _padded(layer, below, beside, whole) + math.prod(layer.made[:2]) * whole + 64
    below, beside = (2 * layer.pads[0], 2 * layer.pads[1]) if any(layer.pads) else layer.over
    padded = _padded(layer, below, beside, channels) if below or beside else 0
    strip = (layer.given[1] + beside) * layer.filters[0] * channels
    return filters + (padded if padded <= _STRIPS_ABOVE_BYTES else strip) + 16


def _padded(layer: _Layer, below: int, beside: int, channels: int) -> int:
    return (layer.given[0] + below) * (layer.given[1] + beside) * channels


def _up(count: int, step: int) -> int:
    return -(-count // step) * step
