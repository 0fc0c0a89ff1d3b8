"""Writing an int8 `.tflite` as bakenn's importer takes it, where that changes nothing of what is computed; refusing by operator where it would.

The importer (bakenn 1.0) asks for operator versions of the int8 kernels, static shapes, options that other converters leave out, and bias scales
that are exactly the product of the two before them. None of that is arithmetic.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

from edgekit.errors import ConversionError
from edgekit.formats import tflite_flatbuffer as flatbuffer

VERSIONS = {"CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "ADD": 2, "AVERAGE_POOL_2D": 2, "MAX_POOL_2D": 2, "RESHAPE": 1, "PAD": 2, "PADV2": 2}
LAYERS = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"})
MOVES = frozenset({"SQUEEZE", "EXPAND_DIMS"})
"""Operators that only change the shape: RESHAPE does the same."""
TAILS = frozenset({"SOFTMAX", "LOGISTIC", "TANH", "HARD_SWISH", "ELU", "LEAKY_RELU", "RELU", "RELU6", "QUANTIZE"})
"""Operators that are taken at the end of the graph, as a few lines of C behind the generated ones."""
SHAPES = MOVES | {"RESHAPE"}
OPTIONS = {"PAD": "PadOptions", "PADV2": "PadV2Options", "ADD": "AddOptions", "FULLY_CONNECTED": "FullyConnectedOptions"}
"""Options that converters leave out where they say nothing but defaults."""
TURN = "TRANSPOSE"
"""Taken at both ends: a converter puts it there where a source has channels first."""
HEADS = frozenset({TURN, "QUANTIZE"})
"""Operators that are taken at the start of the graph, as C before the generated one; QUANTIZE where the input is uint8."""


def prepare(model: Any, name: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Rewrite a parsed int8 model in place; the operators cut off its start and its end, in order. Raises `ConversionError` by operator."""
    if len(model.subgraphs) != 1:
        raise ConversionError(f"{name}: it has {len(model.subgraphs)} graphs (state or control flow), and generated C takes one", _ELSE)
    graph = model.subgraphs[0]
    tail, head = _cut(model, graph), _cut_head(model, graph)
    for tensor in graph.tensors:
        tensor.shapeSignature = None
    for operator in graph.operators:
        _rewrite(model, graph, operator, name)
    graph.operators = [step for operator in graph.operators for step in _on_matrices(model, graph, operator)]
    model.signatureDefs, model.metadata = None, None
    flatbuffer.merge_buffers(model, share=False)
    return head, tail


def write(model: Any, out: Path) -> Path:
    """Write a prepared model, constants inside."""
    return flatbuffer.write(out, flatbuffer.dump(model))


_ELSE = "package for the same core without -c: TFLM's interpreter runs it"


def _cut(model: Any, graph: Any) -> tuple[Any, ...]:
    tail: list[Any] = []
    while graph.operators and len(graph.outputs) == 1:
        last = graph.operators[-1]
        if flatbuffer.op_name(model, last) not in TAILS | SHAPES | {TURN} or int(last.outputs[0]) != int(graph.outputs[0]):
            break
        tail.insert(0, graph.operators.pop())
        graph.outputs = [int(last.inputs[0])]
    while tail and flatbuffer.op_name(model, tail[0]) in SHAPES:  # these are generated
        graph.operators.append(tail.pop(0))
        graph.outputs = [int(graph.operators[-1].outputs[0])]
    return tuple(tail)


def _cut_head(model: Any, graph: Any) -> tuple[Any, ...]:
    """One TRANSPOSE, one QUANTIZE to int8, or both, with the changes of shape around them, that nothing but the next operator reads."""
    taken, tensor = list[Any](), int(graph.inputs[0])
    while len(graph.inputs) == 1 and [int(i) for o in graph.operators for i in o.inputs].count(tensor) == 1:
        first = next(o for o in graph.operators if tensor in [int(i) for i in o.inputs])
        kind = flatbuffer.op_name(model, first)
        if kind not in SHAPES | HEADS or (kind in HEADS and any(flatbuffer.op_name(model, o) == kind for o in taken)):
            break
        taken.append(first)
        tensor = int(first.outputs[0])
    if not any(flatbuffer.op_name(model, o) in HEADS for o in taken) or len(taken) == len(graph.operators):
        return ()
    graph.operators = [o for o in graph.operators if not any(o is other for other in taken)]
    graph.inputs = [tensor]
    return tuple(taken)


def _rewrite(model: Any, graph: Any, operator: Any, name: str) -> None:
    kind, out = flatbuffer.op_name(model, operator), graph.tensors[int(operator.outputs[0])]
    if kind not in VERSIONS and kind not in LAYERS and kind not in MOVES:
        raise ConversionError(f"{name}: {kind} ({flatbuffer.text(out.name)}) cannot be generated as C", _ELSE)
    for index in (int(operator.inputs[0]), int(operator.outputs[0])):
        tensor = graph.tensors[index]
        if tensor.type != flatbuffer.schema().TensorType.INT8:
            dtype = flatbuffer.numpy_dtype(tensor.type)
            raise ConversionError(f"{name}: {kind} ({flatbuffer.text(out.name)}) has a {dtype} activation, and generated C takes int8", _ELSE)
    if kind in MOVES or kind == "RESHAPE":
        _reshape(model, operator, out)
        return
    if kind in LAYERS:
        _match_bias(graph, operator)
    if kind in OPTIONS and operator.builtinOptions is None:
        made = flatbuffer.schema()
        operator.builtinOptionsType, operator.builtinOptions = getattr(made.BuiltinOptions, OPTIONS[kind]), getattr(made, f"{OPTIONS[kind]}T")()
    if kind == "FULLY_CONNECTED":
        _plain_dense(graph, operator)
    bias = len(operator.inputs) > 2 and int(operator.inputs[2]) >= 0
    version = VERSIONS[kind] if kind != "FULLY_CONNECTED" else 4 if bias else 6
    operator.opcodeIndex = flatbuffer.op_code(model, kind, version)


def _reshape(model: Any, operator: Any, out: Any) -> None:
    made = flatbuffer.schema()
    options = made.ReshapeOptionsT()
    options.newShape = [int(n) for n in out.shape]
    operator.inputs = [int(operator.inputs[0])]
    operator.opcodeIndex = flatbuffer.op_code(model, "RESHAPE", VERSIONS["RESHAPE"])
    operator.builtinOptionsType, operator.builtinOptions = made.BuiltinOptions.ReshapeOptions, options


def _plain_dense(graph: Any, operator: Any) -> None:
    """Switch off what changes nothing here: asymmetric inputs are of float activations, and a matrix has no other dimensions to keep."""
    operator.builtinOptions.asymmetricQuantizeInputs = False
    if len(graph.tensors[int(operator.inputs[0])].shape) == 2:
        operator.builtinOptions.keepNumDims = False


def _on_matrices(model: Any, graph: Any, operator: Any) -> list[Any]:
    """A dense layer between reshapes, where it reads or writes other than rows and columns; any other operator as it is."""
    if flatbuffer.op_name(model, operator) != "FULLY_CONNECTED":
        return [operator]
    columns, depth = (int(n) for n in graph.tensors[int(operator.inputs[1])].shape)
    before, behind = int(operator.inputs[0]), int(operator.outputs[0])
    operator.inputs[0], operator.outputs = _flat(graph, before, depth), [_flat(graph, behind, columns)]
    operator.builtinOptions.keepNumDims = False
    first = [] if int(operator.inputs[0]) == before else [_step(model, graph, before, int(operator.inputs[0]))]
    last = [] if int(operator.outputs[0]) == behind else [_step(model, graph, int(operator.outputs[0]), behind)]
    return [*first, operator, *last]


def _flat(graph: Any, tensor: int, depth: int) -> int:
    """The tensor, or a new one of its values as rows of `depth`."""
    whole = graph.tensors[tensor]
    if len(whole.shape) == 2:
        return tensor
    flat = copy.copy(whole)
    flat.shape = [math.prod(int(n) for n in whole.shape) // depth, depth]
    flat.name = flatbuffer.text(whole.name).encode() + b"/rows"
    graph.tensors.append(flat)
    return len(graph.tensors) - 1


def _step(model: Any, graph: Any, source: int, out: int) -> Any:
    """A RESHAPE from one tensor to another."""
    made = flatbuffer.schema().OperatorT()
    made.inputs, made.outputs = [source], [out]
    _reshape(model, made, graph.tensors[out])
    return made


def _match_bias(graph: Any, operator: Any) -> None:
    """The bias scale that the kernels use anyway: input scale times weight scale."""
    import numpy as np

    if len(operator.inputs) < 3 or int(operator.inputs[2]) < 0:
        return
    source, weights, bias = (graph.tensors[int(i)] for i in operator.inputs[:3])
    scales = np.float64(source.quantization.scale[0]) * np.asarray(weights.quantization.scale, np.float64)
    bias.quantization = bias.quantization or flatbuffer.schema().QuantizationParametersT()
    bias.quantization.scale = scales.astype(np.float32)
    bias.quantization.zeroPoint, bias.quantization.quantizedDimension = np.zeros(len(scales), np.int64), 0
