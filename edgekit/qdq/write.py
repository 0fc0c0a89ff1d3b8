"""Writing a QDQ graph: grids for activations, integers for weights, QuantizeLinear and DequantizeLinear around every operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from edgekit.errors import ConversionError
from edgekit.qdq import layers, protos, stream
from edgekit.qdq.operators import BOUNDS, MOVERS, NEEDED, PARAMETERS, SATURATING, whole
from edgekit.qdq.rounding import Weights
from edgekit.quantize.grid import Affine, affine
from edgekit.quantize.ranges import Histogram, Method, choose
from edgekit.tensors import Array

HEADROOM = 2.0
"""16 bits reach this much further than what was seen: one bit of sixteen, for values that calibration did not meet."""

FEW, FEW_HEADROOM = 8192, 1.25
"""Of an activation seen in so few values (a pooled vector) the extremes are not known well: 8 bits then reach this much further, unclipped."""

DOMAIN = "com.microsoft"
"""Q and DQ of onnxruntime's own set: 16 bits at every opset (the standard ones have them from 21 on)."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """`bits` of activations (asymmetric, per tensor, unsigned), and how ranges are chosen at 8 bits; 16 bits cover all that was seen.

    `wide` names activations of 16 bits in a graph of 8: the operators that make or read one compute in 16 bits, and what is 8 bits beside
    them is converted. Layers read those of them in `narrow` in 8 bits: a sum that goes on in 16 beside its branches. Those in `real` stay
    float, and so do the operators that make or read them. Weights in `fine` are stored in 16 bits. With `spans` ranges are at least as wide as some
    of Hexagon's 16-bit kernels need them (`qdq.spans`).
    """

    bits: int = 8
    method: Method = "mse"
    wide: frozenset[str] = frozenset()
    narrow: frozenset[str] = frozenset()
    real: frozenset[str] = frozenset()
    fine: frozenset[str] = frozenset()
    spans: bool = False


def write(weights: Weights, seen: Mapping[str, Histogram], policy: Policy) -> Any:
    """The QDQ model of a rounded float graph; inputs and outputs stay float32, under their names."""
    return _Writer(weights, seen, policy).model()


def grids(quantized: Any) -> dict[str, Affine]:
    """On which grid each activation of a QDQ model is stored, by the name that it has in the float graph."""
    values, found = protos.constants(quantized), dict[str, Affine]()
    for node in quantized.graph.node:
        if node.op_type == "QuantizeLinear":
            highest = 255 if values[node.input[2]].dtype == "uint8" else 65535
            found[node.output[0].removesuffix("/stored")] = Affine(float(values[node.input[1]]), int(values[node.input[2]]), 0, highest)
    return found


class _Writer:
    def __init__(self, weights: Weights, seen: Mapping[str, Histogram], policy: Policy) -> None:
        self._weights, self._seen, self._policy = weights, seen, policy
        self._proto = protos.copy(weights.proto)
        self._values = protos.constants(self._proto)
        self._outputs = [value.name for value in self._proto.graph.output]
        self._nodes: list[Any] = []
        self._grids: dict[str, Affine] = {}
        self._real: dict[tuple[str, int], str] = {}
        self._parameters: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._free = protos.free_names(self._proto, "q")
        self._needed = self._needs()
        self._whole = whole(self._proto.graph)
        self._limits = {node.output[0]: self._limit(node) for node in self._proto.graph.node}

    def model(self) -> Any:
        import onnx

        graph = self._proto.graph
        nodes = [type(n).FromString(n.SerializeToString()) for n in graph.node]
        self._absorb(nodes)
        linear = {layer.weight: layer for layer in layers.find(self._weights.proto)}
        for name in (value.name for value in graph.input if self._stays_integer(value.name)):
            self._quantize(name, name, self._grid(name, self._bits(name)))
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
            if len(read[node.input[0]]) > 1 or node.input[0] in self._outputs or not self._stays_integer(node.output[0]):
                continue
            low, high = (0.0, float("inf")) if node.op_type == "Relu" else self._bounds(node)
            grid = self._grid(node.output[0], self._bits(node.output[0]))
            ends = [(end - grid.zero_point) * grid.scale for end in (grid.lowest, grid.highest)]
            if low - grid.scale / 2 <= ends[0] and ends[1] <= high + grid.scale / 2:
                nodes[source].output[0] = node.output[0]
                dropped.append(index)
        for index in reversed(dropped):
            del nodes[index]

    def _needs(self) -> dict[str, tuple[float, float]]:
        """By activation, the span that some reader still tells apart: all of it at the edges, where a target may drop a Q, a ReLU and a DQ."""
        found: dict[str, tuple[float, float]] = {}
        for node in self._proto.graph.node:
            for name in node.input:
                low, high = self._bounds(node) if node.op_type == "Clip" else NEEDED.get(node.op_type, (float("-inf"), float("inf")))
                known = found.get(name, (low, high))
                found[name] = (min(known[0], low), max(known[1], high))
        return found | dict.fromkeys([*self._outputs, *(value.name for value in self._proto.graph.input)], (float("-inf"), float("inf")))

    def _limit(self, node: Any) -> tuple[float, float]:
        """Bounds that a node's output keeps."""
        return self._bounds(node) if node.op_type == "Clip" else BOUNDS.get(node.op_type, (float("-inf"), float("inf")))

    def _bounds(self, node: Any) -> tuple[float, float]:
        ends = [float("-inf"), float("inf")]
        for position, name in enumerate(node.input[1:3]):
            if name in self._values:
                ends[position] = float(self._values[name])
        return ends[0], ends[1]

    def _bits(self, *names: str) -> int:
        return 16 if self._policy.wide.intersection(names) else self._policy.bits

    def _stays_integer(self, name: str) -> bool:
        return name in self._seen and name not in self._policy.real

    def _node(self, node: Any, linear: Mapping[str, layers.OnnxLayer]) -> None:
        first, layer = node.input[0] if node.input else "", linear.get(node.input[1]) if len(node.input) > 1 else None
        moves = node.op_type in MOVERS and first in self._grids
        given = () if layer and first in self._policy.narrow else node.input
        bits = _bits_of(self._grids[first]) if moves else self._bits(*given, *node.output)
        integer = self._policy.real.isdisjoint([*node.input, *node.output])
        for position, name in enumerate(node.input):
            if name in self._grids:
                node.input[position] = self._reading(name, bits)
            elif layer and position == 1:
                node.input[1] = self._weight(layer)
            elif not integer:
                continue
            elif layer and position == 2 and name:
                node.input[2] = self._bias(layer, _as(self._grids[first], bits))
            elif name in self._values and self._values[name].dtype == "float32" and position not in PARAMETERS.get(node.op_type, ()):
                node.input[position] = self._constant(f"{node.name}/{position}", self._bounded(node, name), bits)
        self._nodes.append(node)
        for position, name in enumerate(node.output):
            if self._stays_integer(name):
                node.output[position] = f"{name}/float"
                self._result(name, node.op_type, bits, self._grids[first] if moves else None)

    def _result(self, name: str, kind: str, bits: int, moved: Affine | None) -> None:
        """Quantize what a node of `bits` gives; an activation of 8 bits behind a wide node is converted."""
        asked = bits if moved else self._bits(name)
        if asked == bits:
            self._quantize(f"{name}/float", name, moved or self._grid(name, bits, kind))
            return
        self._pair(f"{name}/float", f"{name}/wide", self._grid(name, bits, kind), f"{name}/wide/real")
        self._quantize(f"{name}/wide/real", name, self._grid(name, asked, kind))

    def _grid(self, name: str, bits: int, kind: str = "") -> Affine:
        if bits == 16 and kind in ("Sigmoid", "Tanh"):  # the provider forces these
            return Affine(2.0**-16, 0, 0, 65535) if kind == "Sigmoid" else Affine(2.0**-15, 32768, 0, 65535)
        return affine(*self._range(name, bits), bits=bits, signed=False)

    def _range(self, name: str, bits: int) -> tuple[float, float]:
        if name in self._whole:
            return self._whole[name]
        seen, limits = self._seen[name], self._limits.get(name, (float("-inf"), float("inf")))
        few = seen.counts.sum() < FEW
        low, high = choose(seen, "minmax" if few or bits == 16 else self._policy.method, bits=bits)
        room = HEADROOM if bits == 16 else FEW_HEADROOM if few else 1.0
        ends = [limits, self._needed.get(name, limits)]
        return max(low * room, *(min(end[0], 0.0) for end in ends)), min(high * room, *(max(end[1], 0.0) for end in ends))

    def _quantize(self, source: str, name: str, grid: Affine) -> None:
        result = name if name in self._outputs else f"{name}/real"
        self._pair(source, name, grid, result)
        self._grids[name] = grid
        self._real[name, _bits_of(grid)] = result

    def _reading(self, name: str, bits: int) -> str:
        """The real value of an activation, from integers of `bits`."""
        if (name, bits) not in self._real:
            self._pair(self._real[name, _bits_of(self._grids[name])], f"{name}/{bits}", _as(self._grids[name], bits), f"{name}/{bits}/real")
            self._real[name, bits] = f"{name}/{bits}/real"
        return self._real[name, bits]

    def _pair(self, source: str, name: str, grid: Affine, result: str) -> None:
        parameters = [self._parameter(grid.scale, "float32"), self._parameter(grid.zero_point, f"uint{_bits_of(grid)}")]
        self._q("QuantizeLinear", [source, *parameters], f"{name}/stored")
        self._q("DequantizeLinear", [f"{name}/stored", *parameters], result)

    def _bounded(self, node: Any, name: str) -> Array:
        """A constant without the infinities and mask values that the operator's result never shows."""
        import numpy as np

        value, seen = self._values[name], self._seen.get(node.output[0])
        if node.op_type not in SATURATING or seen is None or np.isnan(value).any():
            return value
        reach = 2 * max(-seen.low, seen.high, 1.0)
        return np.clip(value, -reach, reach) if np.abs(value).max(initial=0) >= stream.MASK else value

    def _constant(self, name: str, value: Array, bits: int) -> str:
        import numpy as np

        if not np.isfinite(value).all():
            raise ConversionError(f"{name}: the constant holds infinity or NaN, which no integer stands for", "use a large finite number")
        grid = affine(float(value.min()), float(value.max()), bits=bits, signed=False)
        stored = np.clip(np.rint(value / grid.scale) + grid.zero_point, grid.lowest, grid.highest).astype(f"uint{bits}")
        return self._stored(name, stored, grid.scale, grid.zero_point)

    def _weight(self, layer: layers.OnnxLayer) -> str:
        import numpy as np

        weight, scales = self._values[layer.weight], self._weights.scales[layer.weight]
        matrix, rows = layer.to_matrix(weight), scales.reshape(len(scales), -1)
        block = matrix.shape[1] // rows.shape[1]
        bits = self._weights.widths.get(layer.weight, 8)
        stored = layer.from_matrix(np.rint(matrix / np.repeat(rows, block, axis=1)).astype(np.int16 if bits > 8 else np.int8), weight.shape)
        if rows.shape[1] == 1:
            return self._stored(layer.weight, stored, rows[:, 0], 0, layer.axis, bits)
        across = 1 - layer.axis
        shape = tuple(rows.shape[1] if place == across else size for place, size in enumerate(weight.shape))
        return self._stored(layer.weight, stored, layer.from_matrix(rows, shape), 0, across, bits, block)

    def _bias(self, layer: layers.OnnxLayer, source: Affine) -> str:
        import numpy as np

        bias, rows = self._values[layer.bias].reshape(-1).astype(np.float64), self._weights.scales[layer.weight]
        scales = rows.reshape(len(rows), -1).max(axis=1) * source.scale
        scales = np.tile(scales, len(bias) // len(scales))
        stored = np.clip(np.rint(bias / scales), -(2**31) + 1, 2**31 - 1).astype(np.int32)
        return self._stored(layer.bias, stored, scales, 0, 0)

    def _stored(self, name: str, stored: Array, scale: Any, zero_point: int, axis: int | None = None, bits: int = 8, block: int = 0) -> str:
        import numpy as np

        zeros, dtype = np.full(np.shape(scale), zero_point), "int4" if bits == 4 else stored.dtype.name
        parameters = [self._parameter(scale, "float32"), self._parameter(zeros, dtype, owner=name if dtype == "int8" else "")]
        protos.set_constant(self._proto, f"{name}/stored", stored)
        if bits == 4:  # two in a byte
            protos.set_narrow(self._proto, f"{name}/stored")
        self._q("DequantizeLinear", [f"{name}/stored", *parameters], f"{name}/real", axis, block)
        return f"{name}/real"

    def _parameter(self, value: Any, dtype: str, owner: str = "") -> str:
        """A scale or zero point, stored once for all that are equal: there are two for every grid, and nobody reads their names.

        int8 weights own theirs: what turns them to uint8 in onnxruntime (`session.x64quantprecision`) refuses one that is shared.
        """
        import numpy as np

        array = np.asarray(value, dtype.replace("int4", "int8"))
        key = f"{owner}/{dtype}", array.shape, array.tobytes()
        if key not in self._parameters:
            self._parameters[key] = next(self._free)
            protos.set_constant(self._proto, self._parameters[key], array)
            if dtype == "int4":
                protos.set_narrow(self._proto, self._parameters[key])
        return self._parameters[key]

    def _q(self, kind: str, inputs: list[str], output: str, axis: int | None = None, block: int = 0) -> None:
        import onnx

        extra = {} if axis is None else {"axis": axis}
        where = {"block_size": block} if block else {"domain": DOMAIN}  # blocks are in the standard set alone, from 21 on
        self._nodes.append(onnx.helper.make_node(kind, inputs, [output], name=f"{output}/{kind[0]}", **where, **extra))


def _bits_of(grid: Affine) -> int:
    return 8 if grid.highest == 255 else 16


def _as(grid: Affine, bits: int) -> Affine:
    """The grid of `bits` that holds every value of an 8-bit one exactly (255 x 257 = 65535), or the other way covers the same range."""
    if bits == _bits_of(grid):
        return grid
    if bits == 16:
        return Affine(grid.scale / 257, grid.zero_point * 257, 0, 65535)
    return Affine(grid.scale * 257, round(grid.zero_point / 257), 0, 255)
