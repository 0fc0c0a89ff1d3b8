"""Writing a QDQ graph: grids for activations, integers for weights, QuantizeLinear and DequantizeLinear around every operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from edgekit.errors import ConversionError
from edgekit.qdq import layers, protos
from edgekit.qdq.rounding import Weights
from edgekit.quantize.grid import Affine, affine
from edgekit.quantize.ranges import Histogram, Method, choose
from edgekit.tensors import Array

MOVERS = frozenset(("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather", "MaxPool", "Split", "DepthToSpace", "SpaceToDepth",
                    "Identity", "Tile", "Expand", "GlobalMaxPool", "ReduceMax"))  # fmt: skip
"""Operators that only move or pick values: their outputs keep the grid of their first input."""

PARAMETERS = {"Clip": (1, 2), "Resize": (1, 2, 3), "Pad": (1, 2, 3)}
"""Positions of float constants that stay as they are."""

DOMAIN = "com.microsoft"
"""Q and DQ of onnxruntime's own set: 16 bits at every opset (the standard ones have them from 21 on)."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """`bits` of activations (asymmetric, per tensor, unsigned), and how ranges are chosen at 8 bits; 16 bits cover all that was seen."""

    bits: int = 8
    method: Method = "mse"


def write(weights: Weights, seen: Mapping[str, Histogram], policy: Policy) -> Any:
    """The QDQ model of a rounded float graph; inputs and outputs stay float32, under their names."""
    return _Writer(weights, seen, policy).model()


class _Writer:
    def __init__(self, weights: Weights, seen: Mapping[str, Histogram], policy: Policy) -> None:
        self._weights, self._seen, self._policy = weights, seen, policy
        self._proto = protos.copy(weights.proto)
        self._values = protos.constants(self._proto)
        self._outputs = [value.name for value in self._proto.graph.output]
        self._nodes: list[Any] = []
        self._read: dict[str, str] = {}
        self._grids: dict[str, Affine] = {}

    def model(self) -> Any:
        import onnx

        graph = self._proto.graph
        nodes = [type(n).FromString(n.SerializeToString()) for n in graph.node]
        self._absorb(nodes)
        linear = {layer.weight: layer for layer in layers.find(self._weights.proto)}
        for value in (value for value in graph.input if value.name in self._seen):
            self._quantize(value.name, value.name, self._grid(value.name))
        for node in nodes:
            self._node(node, linear)
        del graph.node[:], graph.value_info[:]
        graph.node.extend(self._nodes)
        used = {name for node in self._nodes for name in node.input}
        kept = [t for t in graph.initializer if t.name in used]
        copies = [onnx.TensorProto.FromString(t.SerializeToString()) for t in kept]
        del graph.initializer[:]
        graph.initializer.extend(copies)
        if not any(o.domain == DOMAIN for o in self._proto.opset_import):
            self._proto.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
        return self._proto

    def _absorb(self, nodes: list[Any]) -> None:
        """Drop a ReLU or Clip whose bounds the integer grid of its output keeps by saturating."""
        made, read = protos.producers(nodes), protos.consumers(nodes)
        dropped = []
        for index, node in enumerate(nodes):
            source = made.get(node.input[0]) if node.op_type in ("Relu", "Clip") else None
            if source is None or nodes[source].op_type not in ("Conv", "Gemm", "Add"):
                continue
            if len(read[node.input[0]]) > 1 or node.input[0] in self._outputs:
                continue
            low, high = (0.0, float("inf")) if node.op_type == "Relu" else self._bounds(node)
            grid = self._grid(node.output[0])
            ends = [(end - grid.zero_point) * grid.scale for end in (grid.lowest, grid.highest)]
            if low - grid.scale / 2 <= ends[0] and ends[1] <= high + grid.scale / 2:
                nodes[source].output[0] = node.output[0]
                dropped.append(index)
        for index in reversed(dropped):
            del nodes[index]

    def _bounds(self, node: Any) -> tuple[float, float]:
        ends = [float("-inf"), float("inf")]
        for position, name in enumerate(node.input[1:3]):
            if name in self._values:
                ends[position] = float(self._values[name])
        return ends[0], ends[1]

    def _node(self, node: Any, linear: Mapping[str, layers.OnnxLayer]) -> None:
        first, layer = node.input[0] if node.input else "", linear.get(node.input[1]) if len(node.input) > 1 else None
        for position, name in enumerate(node.input):
            if name in self._read:
                node.input[position] = self._read[name]
            elif layer and position == 1:
                node.input[1] = self._weight(layer)
            elif layer and position == 2 and name:
                node.input[2] = self._bias(layer, first)
            elif name in self._values and self._values[name].dtype == "float32" and position not in PARAMETERS.get(node.op_type, ()):
                node.input[position] = self._constant(f"{node.name}/{position}", self._values[name])
        moved = self._grids.get(first) if node.op_type in MOVERS else None
        self._nodes.append(node)
        for position, name in enumerate(node.output):
            if name in self._seen:
                raw = f"{name}/float"
                node.output[position] = raw
                self._quantize(raw, name, moved or self._grid(name, node.op_type))

    def _grid(self, name: str, kind: str = "") -> Affine:
        bits = self._policy.bits
        if bits == 16 and kind in ("Sigmoid", "Tanh"):  # the provider forces these
            return Affine(2.0**-16, 0, 0, 65535) if kind == "Sigmoid" else Affine(2.0**-15, 32768, 0, 65535)
        return affine(*choose(self._seen[name], self._policy.method if bits == 8 else "minmax", bits=bits), bits=bits, signed=False)

    def _quantize(self, source: str, name: str, grid: Affine) -> None:
        if name not in self._seen:
            return
        self._grids[name] = grid
        result = name if name in self._outputs else f"{name}/real"
        parameters = self._parameters(name, grid.scale, grid.zero_point, "uint8" if grid.highest == 255 else "uint16")
        self._q("QuantizeLinear", [source, *parameters], f"{name}/stored")
        self._q("DequantizeLinear", [f"{name}/stored", *parameters], result)
        self._read[name] = result

    def _constant(self, name: str, value: Array) -> str:
        import numpy as np

        if not np.isfinite(value).all():
            raise ConversionError(f"{name}: the constant holds infinity or NaN, which no integer stands for", "use a large finite number")
        bits = self._policy.bits
        grid = affine(float(value.min()), float(value.max()), bits=bits, signed=False)
        stored = np.clip(np.rint(value / grid.scale) + grid.zero_point, grid.lowest, grid.highest).astype(f"uint{bits}")
        return self._stored(name, stored, grid.scale, grid.zero_point)

    def _weight(self, layer: layers.OnnxLayer) -> str:
        import numpy as np

        scales = self._weights.scales[layer.weight]
        matrix = layer.to_matrix(self._values[layer.weight])
        stored = layer.from_matrix(np.rint(matrix / scales[:, None]).astype(np.int8), self._values[layer.weight].shape)
        return self._stored(layer.weight, stored, scales, 0, layer.axis)

    def _bias(self, layer: layers.OnnxLayer, source: str) -> str:
        import numpy as np

        bias = self._values[layer.bias].reshape(-1).astype(np.float64)
        scales = self._weights.scales[layer.weight] * self._grids[source].scale
        scales = np.tile(scales, len(bias) // len(scales))
        stored = np.clip(np.rint(bias / scales), -(2**31) + 1, 2**31 - 1).astype(np.int32)
        return self._stored(layer.bias, stored, scales, 0, 0)

    def _stored(self, name: str, stored: Array, scale: Any, zero_point: int, axis: int | None = None) -> str:
        protos.set_constant(self._proto, f"{name}/stored", stored)
        parameters = self._parameters(name, scale, zero_point, stored.dtype.name)
        self._q("DequantizeLinear", [f"{name}/stored", *parameters], f"{name}/real", axis)
        return f"{name}/real"

    def _parameters(self, name: str, scale: Any, zero_point: int, dtype: str) -> list[str]:
        import numpy as np

        steps = np.asarray(scale, np.float32)
        protos.set_constant(self._proto, f"{name}/scale", steps)
        protos.set_constant(self._proto, f"{name}/zero", np.full(steps.shape, zero_point, dtype))
        return [f"{name}/scale", f"{name}/zero"]

    def _q(self, kind: str, inputs: list[str], output: str, axis: int | None = None) -> None:
        import onnx

        extra = {} if axis is None else {"axis": axis}
        self._nodes.append(onnx.helper.make_node(kind, inputs, [output], name=f"{output}/{kind[0]}", domain=DOMAIN, **extra))
