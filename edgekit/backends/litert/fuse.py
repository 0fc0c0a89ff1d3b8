"""Activations that stand alone put back into the layer before them, so that no eight bits are spent on what a ReLU throws away."""

from __future__ import annotations

from typing import Any

from edgekit.formats import tflite_flatbuffer as flatbuffer

LAYERS = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "ADD"})
FUSED = {"RELU": "RELU", "RELU6": "RELU6", "RELU_N1_TO_1": "RELU_N1_TO_1"}
"""Operator -> the schema's fused activation."""


def fuse_activations(model: Any) -> bool:
    """Let the layers of the main graph compute the ReLU that alone reads them; the function stays the same. Whether anything changed."""
    graph = model.subgraphs[0]
    makers = {int(op.outputs[0]): op for op in graph.operators if flatbuffer.op_name(model, op) in LAYERS}
    readers = [int(i) for op in graph.operators for i in op.inputs] + [int(i) for i in graph.outputs]
    fused = []
    for op in graph.operators:
        kind = FUSED.get(flatbuffer.op_name(model, op))
        maker = makers.get(int(op.inputs[0])) if kind else None
        if kind is None or maker is None or readers.count(int(op.inputs[0])) != 1 or not _free(graph, maker):
            continue
        maker.builtinOptions.fusedActivationFunction = getattr(flatbuffer.schema().ActivationFunctionType, kind)
        maker.outputs = op.outputs
        fused.append(id(op))
    graph.operators = [op for op in graph.operators if id(op) not in fused]
    return bool(fused)


def means_for_pools(model: Any) -> bool:
    """Turn average pools over a whole image into MEAN; the function stays the same. Whether anything changed.

    A pool's integers have one scale for input and output, and the mean of an image reaches far less far than its pixels do.
    """
    import numpy as np

    graph, made, changed = model.subgraphs[0], flatbuffer.schema(), False
    for op in graph.operators:
        if flatbuffer.op_name(model, op) != "AVERAGE_POOL_2D" or not _whole(graph, op):
            continue
        axes = made.TensorT()
        axes.name, axes.shape, axes.type, axes.hasRank = flatbuffer.text(graph.tensors[op.outputs[0]].name).encode() + b"/axes", [2], 2, True
        axes.buffer = flatbuffer.add_constant(model, np.array([1, 2], np.int32))
        graph.tensors.append(axes)
        op.inputs, op.opcodeIndex = [int(op.inputs[0]), len(graph.tensors) - 1], flatbuffer.op_code(model, "MEAN", 1)
        op.builtinOptions, op.builtinOptionsType = made.ReducerOptionsT(), made.BuiltinOptions.ReducerOptions
        op.builtinOptions.keepDims, changed = True, True
    return changed


def _whole(graph: Any, op: Any) -> bool:
    """Whether a float pool without activation covers its input at once."""
    options, read = op.builtinOptions, graph.tensors[op.inputs[0]]
    size = [int(s) for s in read.shape[1:3]]
    out = [int(s) for s in graph.tensors[op.outputs[0]].shape[1:3]]
    return [options.filterHeight, options.filterWidth] == size and out == [1, 1] and min(size) > 0 and _free(graph, op)


def _free(graph: Any, op: Any) -> bool:
    """Whether a float operator has a place for an activation and none in it."""
    float32 = flatbuffer.schema().TensorType.FLOAT32
    plain = all(graph.tensors[i].type == float32 for i in (*op.inputs, *op.outputs) if i >= 0)
    return plain and getattr(op.builtinOptions, "fusedActivationFunction", None) == 0
