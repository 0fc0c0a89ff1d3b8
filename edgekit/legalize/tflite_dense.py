"""Dense layers as 1 x 1 convolutions, which are fixed point in every runtime: at the end of a float `.tflite`, or of an integer one (`tflite_exact`).

LiteRT's reference FULLY_CONNECTED multiplies accumulators in double precision where weights have a scale for each channel or activations
16 bits; TFLM and CMSIS-NN multiply in fixed point, at times one step apart. CONV_2D is fixed point in all of them, and the same products; where
all layers become convolutions, firmware links one kernel less. It is nothing for nets that are dense throughout: CMSIS-NN with DSP takes twice
the instructions for a single row, and loops would need a RESHAPE at every step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

from edgekit.formats import tflite_flatbuffer as flatbuffer

MOST_SHARE = 0.02
"""Part of the multiplications of all convolutions above which a dense layer stays one."""
MAPS = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D", "MEAN"})
MOVES = frozenset({"RESHAPE", "SQUEEZE"})
LINEAR = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"})
POINTWISE = "a dense layer is a 1 x 1 convolution, the same products: LiteRT's reference kernels, TFLM and CMSIS-NN agree on it to the byte"
VERSIONS: dict[str | None, int] = {"int8": 3, "int16": 4}
"""Of CONV_2D, by what it reads."""


def pointwise(model: Any) -> tuple[str, ...]:
    """Make dense layers behind maps of one place CONV_2D, where that costs next to nothing. The names of the layers changed."""
    graph, changed = model.subgraphs[0], []
    operators, constants = list[Any](), dict[Any, int]()
    makers = {int(o.outputs[0]): o for o in graph.operators if len(o.outputs)}
    most = MOST_SHARE * sum(products(graph, o) for o in graph.operators if flatbuffer.op_name(model, o) in ("CONV_2D", "DEPTHWISE_CONV_2D"))
    for operator in graph.operators:
        cheap = _convertible(model, graph, operator) and products(graph, operator) <= most and _behind_map(model, graph, makers, operator)
        if not cheap and not (_convertible(model, graph, operator) and _asserts(graph, operator)):
            operators.append(operator)
            continue
        changed.append(flatbuffer.text(graph.tensors[int(operator.outputs[0])].name))
        operators += _convolution(model, graph, operator, constants)
    graph.operators = operators
    while join_reshapes(model, graph):
        continue
    return tuple(changed)


def convolve(model: Any, layers: Sequence[Any]) -> tuple[str, ...]:
    """Make dense layers of a parsed integer model CONV_2D of the same integers; their names."""
    graph, operators, made = model.subgraphs[0], list[Any](), dict[Any, int]()
    names = [flatbuffer.text(graph.tensors[int(o.outputs[0])].name) for o in layers]
    for operator in graph.operators:
        operators += _convolution(model, graph, operator, made) if any(operator is layer for layer in layers) else [operator]
    graph.operators = operators
    while layers and join_reshapes(model, graph):
        continue
    return tuple(names)


def _convertible(model: Any, graph: Any, operator: Any) -> bool:
    if flatbuffer.op_name(model, operator) != "FULLY_CONNECTED" or operator.builtinOptions is None or operator.builtinOptions.weightsFormat != 0:
        return False
    float32 = flatbuffer.schema().TensorType.FLOAT32
    ends = [graph.tensors[int(i)] for i in (operator.inputs[0], operator.inputs[1], operator.outputs[0])]
    sized = all(t.type == float32 and t.shape is not None and t.shapeSignature is None for t in ends)
    return sized and flatbuffer.constant(model, ends[1]) is not None and math.prod(map(int, ends[0].shape)) % int(ends[1].shape[1]) == 0


def products(graph: Any, operator: Any) -> int:
    """Multiplications of a layer: of each output with its weights; a depthwise layer's last size is the outputs' own."""
    weights, out = graph.tensors[int(operator.inputs[1])].shape, graph.tensors[int(operator.outputs[0])].shape
    if weights is None or out is None:
        return 0
    depthwise = len(weights) == 4 and int(weights[0]) == 1 and int(weights[3]) == int(out[-1])
    return math.prod(map(int, out)) * math.prod(map(int, weights[1:3] if depthwise else weights[1:]))


def _behind_map(model: Any, graph: Any, makers: dict[int, Any], operator: Any) -> bool:
    """Whether the layer reads a map of one place, with nothing but changes of shape between."""
    tensor = int(operator.inputs[0])
    if math.prod(map(int, graph.tensors[tensor].shape)) != int(graph.tensors[int(operator.inputs[1])].shape[1]):
        return False
    while tensor in makers and flatbuffer.op_name(model, makers[tensor]) in MOVES:
        tensor = int(makers[tensor].inputs[0])
    if tensor not in makers or flatbuffer.op_name(model, makers[tensor]) not in MAPS:
        return False
    shape = [int(n) for n in graph.tensors[tensor].shape]
    return flatbuffer.op_name(model, makers[tensor]) == "MEAN" or shape[:-1] == [1, 1, 1]


def _asserts(graph: Any, operator: Any) -> bool:
    """Whether TFLM's kernel with CMSIS-NN, which has rows of more than two dimensions convolved, stops at an assertion of debug builds: that its
    buffer for the one scale is not among the first four (`cmsis_nn/fully_connected.cc`).
    """
    return int(graph.tensors[int(operator.inputs[1])].shape[0]) == 1 and len(graph.tensors[int(operator.outputs[0])].shape) > 2


def _convolution(model: Any, graph: Any, operator: Any, constants: dict[Any, int]) -> list[Any]:
    """The layer on maps, with RESHAPEs around it; the steps of a written-out loop share `constants`."""
    made = flatbuffer.schema()
    channels, depth = (int(n) for n in graph.tensors[int(operator.inputs[1])].shape)
    given, out = int(operator.inputs[0]), int(operator.outputs[0])
    before, behind = (_places(graph.tensors[i]) for i in (given, out))
    rows = before if before and before == behind else [1, math.prod(map(int, graph.tensors[given].shape)) // depth, 1]
    source, result = _map(graph, given, [*rows, depth]), _map(graph, out, [*rows, channels])
    options, layer = made.Conv2DOptionsT(), made.OperatorT()
    options.padding, options.strideH, options.strideW = made.Padding.VALID, 1, 1
    options.dilationHFactor = options.dilationWFactor = 1
    options.fusedActivationFunction = operator.builtinOptions.fusedActivationFunction
    layer.opcodeIndex = flatbuffer.op_code(model, "CONV_2D", VERSIONS.get(flatbuffer.numpy_dtype(graph.tensors[given].type), 1))
    layer.inputs, layer.outputs = [source, *_constants(model, graph, operator, constants)], [result]
    layer.builtinOptionsType, layer.builtinOptions = made.BuiltinOptions.Conv2DOptions, options
    if result != out and out not in [int(i) for i in graph.outputs]:  # a layer is known by the name of what it writes
        inner, outer = graph.tensors[result], graph.tensors[out]
        inner.name, outer.name = outer.name, flatbuffer.text(outer.name).encode() + b"/rows"
    steps = [reshape(model, graph, given, source), layer, reshape(model, graph, result, out)]
    return [step for step in steps if int(step.inputs[0]) != int(step.outputs[0])]


def _places(tensor: Any) -> list[int]:
    """What stands before the channels of a map; empty for a tensor that is none."""
    return [int(n) for n in tensor.shape[:3]] if len(tensor.shape) == 4 else []


def _map(graph: Any, tensor: int, shape: list[int]) -> int:
    """The tensor itself where it has this shape, or a new one of the same values, under a name of its own."""
    whole = graph.tensors[tensor]
    if [int(n) for n in whole.shape] == shape:
        return tensor
    found = copy.copy(whole)
    found.shape, found.name = shape, flatbuffer.text(whole.name).encode() + f"/map{len(graph.tensors)}".encode()
    graph.tensors.append(found)
    return len(graph.tensors) - 1


def _constants(model: Any, graph: Any, operator: Any, made: dict[Any, int]) -> tuple[int, int]:
    """Filters and bias, each made once."""
    given, weights = graph.tensors[int(operator.inputs[0])], int(operator.inputs[1])
    scale = None if given.quantization is None or given.quantization.scale is None else float(given.quantization.scale[0])
    bias = int(operator.inputs[2]) if len(operator.inputs) > 2 else -1
    if weights not in made:
        made[weights] = _filters(graph, operator)
    if (weights, bias, scale) not in made:
        made[weights, bias, scale] = _bias(model, graph, operator)
    return made[weights], made[weights, bias, scale]


def _filters(graph: Any, operator: Any) -> int:
    weights = graph.tensors[int(operator.inputs[1])]
    filters = copy.copy(weights)
    filters.shape = [int(weights.shape[0]), 1, 1, int(weights.shape[1])]
    filters.name = flatbuffer.text(weights.name).encode() + b"/filters"
    filters.quantization = _by_channel(weights, int(weights.shape[0]))
    graph.tensors.append(filters)
    return len(graph.tensors) - 1


def _by_channel(tensor: Any, channels: int, factor: float = 1.0) -> Any:
    """A constant's scales times a factor, one for each channel; None for a float."""
    import numpy as np

    if tensor.quantization is None or tensor.quantization.scale is None or not len(tensor.quantization.scale):
        return None
    found = flatbuffer.schema().QuantizationParametersT()
    found.scale = np.broadcast_to(np.asarray(tensor.quantization.scale, np.float32) * np.float32(factor), channels)
    found.zeroPoint, found.quantizedDimension = np.zeros(channels, np.int64), 0
    return found


def _bias(model: Any, graph: Any, operator: Any) -> int:
    """The layer's own, or zeros: LiteRT's convolution wants one."""
    import numpy as np

    if len(operator.inputs) > 2 and int(operator.inputs[2]) >= 0:
        return int(operator.inputs[2])
    given, weights, zeros = graph.tensors[int(operator.inputs[0])], graph.tensors[int(operator.inputs[1])], flatbuffer.schema().TensorT()
    channels, types = int(weights.shape[0]), flatbuffer.schema().TensorType
    zeros.type = {types.INT8: types.INT32, types.INT16: types.INT64}.get(given.type, types.FLOAT32)
    zeros.name, zeros.shape = flatbuffer.text(weights.name).encode() + b"/bias", [channels]
    if zeros.type != types.FLOAT32:
        zeros.quantization = _by_channel(weights, channels, float(given.quantization.scale[0]))
    zeros.buffer = flatbuffer.add_constant(model, np.zeros(channels, flatbuffer.numpy_dtype(zeros.type)))
    graph.tensors.append(zeros)
    return len(graph.tensors) - 1


def reshape(model: Any, graph: Any, source: int, out: int) -> Any:
    """A RESHAPE from one tensor to another of a parsed model."""
    import numpy as np

    made = flatbuffer.schema()
    shape, constant, step, options = [int(n) for n in graph.tensors[out].shape], made.TensorT(), made.OperatorT(), made.ReshapeOptionsT()
    if source != out:
        constant.name = flatbuffer.text(graph.tensors[out].name).encode() + b"/shape"
        constant.type, constant.shape = made.TensorType.INT32, [len(shape)]
        constant.buffer = flatbuffer.add_constant(model, np.asarray(shape, np.int32))
        graph.tensors.append(constant)
    options.newShape = shape
    step.opcodeIndex, step.inputs, step.outputs = flatbuffer.op_code(model, "RESHAPE", 1), [source, len(graph.tensors) - 1], [out]
    step.builtinOptionsType, step.builtinOptions = made.BuiltinOptions.ReshapeOptions, options
    return step


def join_reshapes(model: Any, graph: Any) -> bool:
    """Leave out one RESHAPE that another one undoes, or that nothing reads. Whether there was one."""
    made = {int(o.outputs[0]): o for o in graph.operators}
    readers = [int(i) for o in graph.operators for i in o.inputs] + [int(i) for i in graph.outputs]
    for operator in graph.operators:
        if flatbuffer.op_name(model, operator) != "RESHAPE":
            continue
        source, out = int(operator.inputs[0]), int(operator.outputs[0])
        if out not in readers:
            graph.operators.remove(operator)
            return True
        first = made.get(source)
        if first is not None and flatbuffer.op_name(model, first) == "RESHAPE":
            operator.inputs[0] = first.inputs[0]
            return True
        if first is not None and readers.count(source) == 1 and _keeps(model, graph, first, out):
            graph.tensors[source].shape = [int(n) for n in graph.tensors[out].shape]
            first.builtinOptions.keepDims = True
            return True
        if out not in [int(i) for i in graph.outputs] and list(map(int, graph.tensors[source].shape)) == list(map(int, graph.tensors[out].shape)):
            for reader in graph.operators:
                reader.inputs = [source if int(i) == out else int(i) for i in reader.inputs]
            return True
    return False


def _keeps(model: Any, graph: Any, operator: Any, out: int) -> bool:
    """Whether a MEAN gives the shape of `out` where it keeps the dimensions that it is taken over."""
    if flatbuffer.op_name(model, operator) != "MEAN" or operator.builtinOptions is None or operator.builtinOptions.keepDims:
        return False
    whole, axes = graph.tensors[int(operator.inputs[0])], flatbuffer.constant(model, graph.tensors[int(operator.inputs[1])])
    if axes is None or whole.shape is None:
        return False
    over = {int(axis) % len(whole.shape) for axis in axes.reshape(-1)}
    return [1 if i in over else int(n) for i, n in enumerate(whole.shape)] == [int(n) for n in graph.tensors[out].shape]
