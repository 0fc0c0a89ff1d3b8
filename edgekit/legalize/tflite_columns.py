"""Columns that a strided convolution over one row never reaches, which CMSIS-NN with MVE computes with all the same.

Its kernel for one row (`arm_convolve_1_x_n_s8`, 3.6.1) takes a negative sum of paddings for padding at the end: the last output misses a column, or
the kernel fails. Without those columns the sum is zero.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from edgekit.formats import tflite_flatbuffer as flatbuffer


def drop_unreached(path: Path) -> tuple[str, ...]:
    """Rewrite an int8 file in place, so that paddings are shorter or a SLICE leaves the columns out; the names of the layers concerned."""
    model = flatbuffer.load(path.read_bytes(), path.name)
    graph, names, operators = model.subgraphs[0], list[str](), list[Any]()
    makers = {int(o.outputs[0]): o for o in graph.operators if len(o.outputs)}
    for operator in graph.operators:
        if (left := _unreached(model, graph, operator)) > 0:
            names.append(flatbuffer.text(graph.tensors[int(operator.outputs[0])].name))
            operators += _without(model, graph, operator, makers.get(int(operator.inputs[0])), left)
        operators.append(operator)
    graph.operators = operators
    if names:
        flatbuffer.merge_buffers(model, share=False)
        flatbuffer.write(path, flatbuffer.dump(model))
    return tuple(names)


def _unreached(model: Any, graph: Any, operator: Any) -> int:
    """Columns behind the last that the layer reads; 0 for another operator, more than one row, or a filter with gaps."""
    if flatbuffer.op_name(model, operator) != "CONV_2D":
        return 0
    given, filters, out = (graph.tensors[int(i)] for i in (operator.inputs[0], operator.inputs[1], operator.outputs[0]))
    options, int8 = operator.builtinOptions, flatbuffer.schema().TensorType.INT8
    if given.type != int8 or int(given.shape[1]) != 1 or int(filters.shape[1]) != 1 or int(filters.shape[2]) == 1 or options.dilationWFactor != 1:
        return 0
    return int(given.shape[2]) - ((int(out.shape[2]) - 1) * int(options.strideW) + int(filters.shape[2]))


def _without(model: Any, graph: Any, operator: Any, maker: Any, left: int) -> list[Any]:
    """Let the layer read fewer columns: of a PAD that only it reads and that adds as many, or behind a SLICE, which is returned."""
    import numpy as np

    tensor, made = int(operator.inputs[0]), flatbuffer.schema()
    readers = [int(i) for o in graph.operators for i in o.inputs].count(tensor) + [int(i) for i in graph.outputs].count(tensor)
    pads = None if maker is None or flatbuffer.op_name(model, maker) != "PAD" else flatbuffer.constant(model, graph.tensors[int(maker.inputs[1])])
    shorter = copy.copy(graph.tensors[tensor])
    shorter.shape = [int(n) for n in shorter.shape]
    shorter.shape[2] -= left
    if pads is not None and readers == 1 and int(pads[2][1]) >= left:
        pads = np.array(pads)
        pads[2][1] -= left
        graph.tensors[tensor] = shorter
        maker.inputs = [int(maker.inputs[0]), _constant(model, graph, tensor, pads)]
        return []
    shorter.name = flatbuffer.text(shorter.name).encode() + b"/reached"
    graph.tensors.append(shorter)
    step, out = made.OperatorT(), len(graph.tensors) - 1
    begin, size = (_constant(model, graph, out, np.asarray(values, np.int32)) for values in ([0, 0, 0, 0], shorter.shape))
    step.opcodeIndex, step.inputs, step.outputs = flatbuffer.op_code(model, "SLICE", 2), [tensor, begin, size], [out]
    step.builtinOptionsType, step.builtinOptions = made.BuiltinOptions.SliceOptions, made.SliceOptionsT()
    operator.inputs = [out, *[int(i) for i in operator.inputs[1:]]]
    return [step]


def _constant(model: Any, graph: Any, tensor: int, values: Any) -> int:
    found, types = flatbuffer.schema().TensorT(), flatbuffer.schema().TensorType
    found.name = f"{flatbuffer.text(graph.tensors[tensor].name)}/constant{len(graph.tensors)}".encode()
    found.type, found.shape = getattr(types, values.dtype.name.upper()), list(values.shape)
    found.buffer = flatbuffer.add_constant(model, values)
    graph.tensors.append(found)
    return len(graph.tensors) - 1
