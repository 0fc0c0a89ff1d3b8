"""What 8-bit activations alone cost: the float model with its activations rounded, operator by operator, its weights as they are."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from edgekit.backends.litert import running, signatures
from edgekit.backends.litert.source import Source
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize.grid import Affine
from edgekit.tensors import Array

LEAST_DB, MOST_DB = -20.0, 120.0
"""Bounds of one sample's level: beyond them it is lost, or exact."""

SAMPLES = 8
"""Judging samples that are run: two simulations on the same ones differ by far less than two samples do."""


def grids(content: bytes) -> dict[str, Affine]:
    """The grids of the 8-bit activations of a quantized file, by the names that they have in the float model.

    They are not those asked for where the format shares one between an operator's input and output, or fixes it (pools, joins, sigmoid).
    """
    model = flatbuffer.load(content)
    int8, found = flatbuffer.schema().TensorType.INT8, dict[str, Affine]()
    for tensor in model.subgraphs[0].tensors:
        scaled = tensor.quantization is not None and tensor.quantization.scale is not None and len(tensor.quantization.scale) == 1
        if tensor.type == int8 and scaled and flatbuffer.constant(model, tensor) is None:
            name = flatbuffer.text(tensor.name).removesuffix("_quantized").removesuffix("_requantized")
            found[name] = Affine(float(tensor.quantization.scale[0]), int(tensor.quantization.zeroPoint[0]), -128, 127)
    return found


def sqnr_db(base: Source, rounded_to: Mapping[str, Affine]) -> float:
    """SQNR in dB, averaged over outputs, of `base` with its activations on the grids `rounded_to`; deterministic."""
    model = base.fresh()
    round_activations(model, rounded_to)
    inputs, outputs = signatures.edges(model, base.model.signature)
    names = [spec.name for spec in base.model.signature.outputs]
    session = running.Interpreter(flatbuffer.dump(model), base.model.signature, edges=(inputs, outputs))
    made = [session.run(sample) for sample in base.judges[:SAMPLES]]
    return level_db([[(wanted[name], given[name]) for wanted, given in zip(base.reference, made, strict=False)] for name in names])


def round_activations(model: Any, rounded_to: Mapping[str, Affine]) -> None:
    """Put a QUANTIZE and a DEQUANTIZE behind the float activations of the main graph that have a grid, by name; signatures follow."""
    graph = model.subgraphs[0]
    grids = {index: rounded_to.get(flatbuffer.text(graph.tensors[index].name)) for index in running.activations(model)}
    renamed: dict[int, int] = {}
    pairs: dict[int, list[Any]] = {}
    for index, grid in grids.items():
        if grid is not None:
            renamed[index], pairs[index] = _pair(model, index, grid)
    operators = [op for index in graph.inputs for op in pairs.get(int(index), ())]
    for op in graph.operators:
        op.inputs = [renamed.get(int(i), int(i)) for i in op.inputs]
        operators += [op, *(rounding for i in op.outputs for rounding in pairs.get(int(i), ()))]
    graph.operators = operators
    graph.outputs = [renamed.get(int(i), int(i)) for i in graph.outputs]
    for port in (port for entry in model.signatureDefs or () if entry.subgraphIndex == 0 for port in entry.outputs):
        port.tensorIndex = renamed.get(int(port.tensorIndex), int(port.tensorIndex))


def _pair(model: Any, index: int, grid: Affine) -> tuple[int, list[Any]]:
    """The rounded tensor's index, and the two operators that make it from tensor `index`."""
    schema, graph = flatbuffer.schema(), model.subgraphs[0]
    quantized, rounded = copy.copy(graph.tensors[index]), copy.copy(graph.tensors[index])
    quantized.type = schema.TensorType.INT8
    quantized.quantization = schema.QuantizationParametersT()
    quantized.quantization.scale, quantized.quantization.zeroPoint = [grid.scale], [grid.zero_point]
    quantized.name, rounded.name = (f"{flatbuffer.text(graph.tensors[index].name)}:{end}".encode() for end in ("integers", "rounded"))
    first = len(graph.tensors)
    graph.tensors += [quantized, rounded]
    return first + 1, [_operator(model, "QUANTIZE", index, first), _operator(model, "DEQUANTIZE", first, first + 1)]


def _operator(model: Any, kind: str, read: int, made: int) -> Any:
    op = flatbuffer.schema().OperatorT()
    op.opcodeIndex = flatbuffer.op_code(model, kind, 2)
    op.inputs, op.outputs = [read], [made]
    return op


def level_db(outputs: list[list[tuple[Array, Array]]]) -> float:
    """Signal to noise in dB: of the mean over outputs of noise by signal, each output's taken as the mean in dB over its (wanted, given) rows.

    In dB, so that one sample of extreme values does not decide alone. Infinite without noise.
    """
    import numpy as np

    levels, noisy = [], False
    for rows in outputs:
        found = []
        for wanted, given in rows:
            real = wanted.astype(np.float64)
            lost, signal = float(((given - real) ** 2).sum()), float((real**2).sum())
            if lost != lost:
                return float("-inf")
            noisy |= lost > 0
            found.append(min(max(10 * math.log10(max(signal, 1e-30) / max(lost, 1e-30)), LEAST_DB), MOST_DB))
        levels.append(sum(found) / len(found))
    return -10 * math.log10(sum(10 ** (-level / 10) for level in levels) / len(levels)) if noisy else float("inf")
