"""Operators that the quantizer leaves in float although integer kernels have them: what stands between DEQUANTIZE and QUANTIZE becomes int8.

Operators that only move values keep the grid of what they read; a QUANTIZE behind them then goes from integers to integers.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from edgekit.formats import tflite_flatbuffer as flatbuffer

MOVES = {"BATCH_TO_SPACE_ND": 2, "DEPTH_TO_SPACE": 1, "EXPAND_DIMS": 1, "REDUCE_MAX": 2, "REVERSE_V2": 1, "SPACE_TO_BATCH_ND": 2, "SQUEEZE": 1}
SCALED = {"LEAKY_RELU": 2, "PRELU": 1}
PLACES = {"ARG_MAX": 2, "ARG_MIN": 2}
VERSIONS = MOVES | SCALED | PLACES
"""Operator -> its version with int8 tensors. `SCALED` rescale from the grid they read to the one they write; `PLACES` write no values."""


LEFT_FLOAT = "in float, for want of an integer kernel or by choice: "
"""How a quantizer begins the notice about what it left in float."""


def without(path: Path, notices: tuple[str, ...]) -> tuple[str, ...]:
    """Make a quantized file integer in place, as far as that goes; its notices, with what became of the operators left in float."""
    found = to_integers(path)
    if not found:
        return notices
    kept = (notice for notice in notices if not notice.startswith(LEFT_FLOAT))
    return (*kept, f"integer although the quantizer has no form for it: {', '.join(found)}")


def to_integers(path: Path) -> tuple[str, ...]:
    """Rewrite a quantized file in place; the names of the operators that are integer now."""
    model = flatbuffer.load(path.read_bytes(), path.name)
    names = [name for graph in model.subgraphs for name in _convert(model, graph)]
    if names:
        flatbuffer.write(path, flatbuffer.dump(model))
    return tuple(names)


def _convert(model: Any, graph: Any) -> list[str]:
    found, float32 = [], flatbuffer.schema().TensorType.FLOAT32
    for operator in list(graph.operators):
        kind = flatbuffer.op_name(model, operator)
        end = int(operator.inputs[0] if kind in PLACES else operator.outputs[0]) if kind in VERSIONS else -1
        if end < 0 or graph.tensors[end].type != float32:
            continue
        before, change = _integer_source(model, graph, int(operator.inputs[0])), _move if kind in MOVES else _scale if kind in SCALED else _place
        if before is not None and change(model, graph, operator, before):
            operator.opcodeIndex = flatbuffer.op_code(model, kind, VERSIONS[kind])
            found.append(f"{kind} ({flatbuffer.text(graph.tensors[int(operator.outputs[0])].name)})")
    if found:
        read = {int(i) for i in graph.outputs} | {int(i) for o in graph.operators for i in o.inputs}
        unread = [o for o in graph.operators if flatbuffer.op_name(model, o) == "DEQUANTIZE" and int(o.outputs[0]) not in read]
        graph.operators = [o for o in graph.operators if o not in unread]
    return found


def _integer_source(model: Any, graph: Any, tensor: int) -> int | None:
    """The int8 tensor that holds what `tensor` does: itself, or what is dequantized into it."""
    int8 = flatbuffer.schema().TensorType.INT8
    if graph.tensors[tensor].type == int8:
        return tensor
    makers = [o for o in graph.operators if tensor in {int(i) for i in o.outputs} and flatbuffer.op_name(model, o) == "DEQUANTIZE"]
    return int(makers[0].inputs[0]) if makers and graph.tensors[int(makers[0].inputs[0])].type == int8 else None


def _quantized(model: Any, graph: Any, tensor: int) -> list[Any]:
    """The QUANTIZE operators that read `tensor`, where only such and operators of this module do; nothing where another reads its real values."""
    readers = [o for o in graph.operators if tensor in {int(i) for i in o.inputs}]
    kinds = [flatbuffer.op_name(model, o) for o in readers]
    ours = tensor not in {int(i) for i in graph.outputs} and all(kind == "QUANTIZE" or kind in VERSIONS for kind in kinds)
    return [o for o, kind in zip(readers, kinds, strict=True) if kind == "QUANTIZE"] if ours else []


def _place(_model: Any, _graph: Any, operator: Any, before: int) -> bool:
    """The largest integer stands where the largest value does."""
    operator.inputs[0] = before
    return True


def _move(model: Any, graph: Any, operator: Any, before: int) -> bool:
    made = graph.tensors[int(operator.outputs[0])]
    requantized = _quantized(model, graph, int(operator.outputs[0]))
    if made.type != flatbuffer.schema().TensorType.FLOAT32 or not requantized:
        return False
    operator.inputs[0] = before
    made.type, made.quantization = graph.tensors[before].type, copy.deepcopy(graph.tensors[before].quantization)
    for quantize in requantized:
        quantize.opcodeIndex = flatbuffer.op_code(model, "QUANTIZE", 2)
    return True


def _scale(model: Any, graph: Any, operator: Any, before: int) -> bool:
    """Write the grid of the QUANTIZE behind, which goes; a second one of another grid reads the first one's integers."""
    made = int(operator.outputs[0])
    quantized, int8 = _quantized(model, graph, made), flatbuffer.schema().TensorType.INT8
    if not quantized or graph.tensors[int(quantized[0].outputs[0])].type != int8 or not _slopes(model, graph, operator):
        return False
    operator.inputs[0], operator.outputs = before, quantized[0].outputs
    graph.operators = [o for o in graph.operators if o is not quantized[0]]
    for reader in graph.operators:
        reader.inputs = [int(operator.outputs[0]) if int(i) == made else int(i) for i in reader.inputs]
    return True


def _slopes(model: Any, graph: Any, operator: Any) -> bool:
    """Make the slopes of a PRELU int8, symmetric and with one scale, as its kernel takes them; False where they are no constant."""
    import numpy as np

    if len(operator.inputs) < 2:
        return True
    slopes = graph.tensors[int(operator.inputs[1])]
    values = flatbuffer.constant(model, slopes)
    if values is None or slopes.type != flatbuffer.schema().TensorType.FLOAT32:
        return False
    scale = max(float(np.abs(values).max()), 1e-6) / 127
    stored = copy.deepcopy(slopes)
    stored.type, stored.quantization = flatbuffer.schema().TensorType.INT8, flatbuffer.schema().QuantizationParametersT()
    stored.quantization.scale, stored.quantization.zeroPoint = np.array([scale], np.float32), np.zeros(1, np.int64)
    stored.buffer = flatbuffer.add_constant(model, np.round(np.asarray(values) / scale).astype(np.int8))
    graph.tensors.append(stored)
    operator.inputs[1] = len(graph.tensors) - 1
    return True
