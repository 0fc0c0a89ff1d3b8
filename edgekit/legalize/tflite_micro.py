"""What microcontroller runtimes ask of a `.tflite`: rewrites of the float model before it is quantized, and refusals by name after."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

from edgekit.errors import ConversionError
from edgekit.formats import Model, tflite
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.graph import Graph, Operator
from edgekit.legalize import tflite_dense, tflite_ends, tflite_moves, tflite_shapes, tflite_tidy

LOOPS = frozenset({"WHILE", "IF"})
FLOATS = frozenset({"float32", "float16", "float64"})
EDGES = frozenset({"QUANTIZE", "DEQUANTIZE"})
MOST_JOINED = 10
"""Inputs that TFLM's CONCATENATION takes (`kernels/concatenation.cc`)."""


def prepare(model: Model, own: str | None, workdir: Path, options: dict[str, Any]) -> tuple[Model, tuple[str, ...]]:
    """What a quantizer is given for a microcontroller, and what to say of it; `own` is the precision that the model has already, None for float.

    A float model has joins in place of TILE and, as a profile's `options` ask for, pools in place of means and pointwise convolutions in
    place of dense layers; an integer one keeps its integers, without float edges and without shapes that it computes.
    Raises `ConversionError` for what no integers are made of.
    """
    if model.path is None:
        raise ConversionError(f"{model.name}: microcontrollers are packaged for from a .tflite file")
    if own in ("w8", "w8-dynamic"):
        refuse(tflite.graph(model.path), model.name)
    if own is not None:
        return _settled(model, workdir)
    refuse_loops(tflite.graph(model.path), model.name)
    path, notices = rewrite(model.path, workdir / "rewritten.tflite", options)
    return dataclasses.replace(model, path=path), notices


def _settled(model: Model, workdir: Path) -> tuple[Model, tuple[str, ...]]:
    """An integer model with static shapes and integer edges; itself where it has those."""
    assert model.path is not None
    static = tflite.fix_shapes(model, workdir / "static.tflite") if getattr(model.handle, "resize", None) else model.path
    parsed = flatbuffer.load(static.read_bytes(), model.name)
    shapes, edges = tflite_shapes.fold(parsed), tflite_ends.bare(parsed)
    if not shapes and not edges:
        return model, ()
    flatbuffer.merge_buffers(parsed, share=False)
    path = flatbuffer.write(workdir / "settled.tflite", flatbuffer.dump(parsed))
    tflite_tidy.drop_unread(path)
    said = [f"{name}: its integers cross the artifact's edge, by scale and zero point, in place of float32" for name in edges]
    said += [f"{', '.join(shapes[:3])}{' and more' * (len(shapes) > 3)}: constants, since every shape is static"] if shapes else []
    return dataclasses.replace(model, path=path), tuple(said)


def rewrite(source: Path, out: Path, options: dict[str, Any]) -> tuple[Path, tuple[str, ...]]:
    """Write a float model so that its operators have integer forms; the source itself where that changes nothing. And the layers changed."""
    model = flatbuffer.load(source.read_bytes(), source.name)
    summed = average_sums(model)
    straight = tflite_moves.shorten(model)
    pooled = pool_means(model) if options.get("means") == "pools" else ()
    notices = (
        *(f"{name}: a dense layer of computed weights is a product of two matrices" for name in multiply(model)),
        *(f"{name}: a sum is a mean and a multiple of it, which TFLM and LiteRT agree on" for name in summed),
        *([f"{', '.join(straight[:3])}{' and more' * (len(straight) > 3)}: moved back to where it came from, or not moved"] if straight else []),
        *(f"{name}: a repetition is a concatenation of the same tensor, which has an integer form" for name in join_tiles(model)),
        *(f"{name}: a mean over height and width is an average pool over the whole map: the same sum" for name in pooled),
        *(f"{name}: joined in groups of {MOST_JOINED}" for name in split_joins(model)),
        *(f"{name}: {tflite_dense.POINTWISE}" for name in (tflite_dense.pointwise(model) if options.get("dense") == "pointwise" else ())),
    )
    return (flatbuffer.write(out, flatbuffer.dump(model)) if notices else source), notices


def pool_means(model: Any) -> tuple[str, ...]:
    """Make means over height and width of a parsed float model AVERAGE_POOL_2D over the whole map (and RESHAPE), which is the same sum.

    Quantized, the pool keeps its input's scale: generated C takes that, and no mean. The names of the layers changed.
    """
    graph, changed = model.subgraphs[0], []
    for place, operator in reversed(list(enumerate(graph.operators))):
        if flatbuffer.op_name(model, operator) == "MEAN" and _is_global(model, graph, operator):
            graph.operators[place : place + 1] = _pool(model, graph, operator)
            changed.append(flatbuffer.text(graph.tensors[int(operator.outputs[0])].name))
    return tuple(reversed(changed))


def average_sums(model: Any) -> tuple[str, ...]:
    """Make SUM of floats MEAN and MUL by the count: LiteRT's integer sums overflow, TFLM's are taken in float. The names of the layers changed."""
    graph, changed = model.subgraphs[0], []
    for place, operator in reversed(list(enumerate(graph.operators))):
        source = graph.tensors[int(operator.inputs[0])] if flatbuffer.op_name(model, operator) == "SUM" else None
        axes = None if source is None else flatbuffer.constant(model, graph.tensors[int(operator.inputs[1])])
        if source is None or axes is None or source.type != flatbuffer.schema().TensorType.FLOAT32:
            continue
        count = math.prod(int(source.shape[int(axis)]) for axis in {int(a) % len(source.shape) for a in axes.reshape(-1)})
        changed.append(flatbuffer.text(graph.tensors[int(operator.outputs[0])].name))
        graph.operators.insert(place + 1, _multiple(model, graph, operator, count))
    return tuple(reversed(changed))


def _multiple(model: Any, graph: Any, operator: Any, count: int) -> Any:
    """Let a SUM write a mean instead; the operator that makes the sum of it."""
    import numpy as np

    made = flatbuffer.schema()
    out = int(operator.outputs[0])
    mean, factor, times, options = copy.copy(graph.tensors[out]), made.TensorT(), made.OperatorT(), made.MulOptionsT()
    mean.name = flatbuffer.text(mean.name).encode() + b"/mean"
    factor.name, factor.type, factor.shape = flatbuffer.text(mean.name).encode() + b"/count", made.TensorType.FLOAT32, []
    factor.buffer = flatbuffer.add_constant(model, np.asarray(count, np.float32))
    graph.tensors += [mean, factor]
    operator.opcodeIndex, operator.outputs = flatbuffer.op_code(model, "MEAN", 1), [len(graph.tensors) - 2]
    times.opcodeIndex, times.inputs, times.outputs = flatbuffer.op_code(model, "MUL", 1), [len(graph.tensors) - 2, len(graph.tensors) - 1], [out]
    times.builtinOptionsType, times.builtinOptions = made.BuiltinOptions.MulOptions, options
    return times


def join_tiles(model: Any) -> tuple[str, ...]:
    """Make TILE along one axis CONCATENATION of its input with itself: no integer kernel tiles. The names of the layers changed."""
    graph, made, changed = model.subgraphs[0], flatbuffer.schema(), []
    for operator in graph.operators:
        times = flatbuffer.constant(model, graph.tensors[int(operator.inputs[1])]) if flatbuffer.op_name(model, operator) == "TILE" else None
        axes = [] if times is None else [axis for axis, count in enumerate(times.reshape(-1)) if int(count) != 1]
        if times is None or len(axes) != 1 or not 1 < int(times.reshape(-1)[axes[0]]) <= MOST_JOINED:
            continue
        operator.inputs = [int(operator.inputs[0])] * int(times.reshape(-1)[axes[0]])
        operator.opcodeIndex = flatbuffer.op_code(model, "CONCATENATION", 1)
        operator.builtinOptionsType, operator.builtinOptions = made.BuiltinOptions.ConcatenationOptions, made.ConcatenationOptionsT()
        operator.builtinOptions.axis = axes[0]
        changed.append(flatbuffer.text(graph.tensors[int(operator.outputs[0])].name))
    return tuple(changed)


def split_joins(model: Any) -> tuple[str, ...]:
    """Make CONCATENATION of more than `MOST_JOINED` tensors one of joined groups (the steps of an unrolled loop). The names of the layers changed."""
    graph, changed, operators = model.subgraphs[0], [], list[Any]()
    for operator in graph.operators:
        while flatbuffer.op_name(model, operator) == "CONCATENATION" and len(operator.inputs) > MOST_JOINED:
            changed.append(flatbuffer.text(graph.tensors[int(operator.outputs[0])].name))
            given = [int(i) for i in operator.inputs]
            groups = [given[i : i + MOST_JOINED] for i in range(0, len(given), MOST_JOINED)]
            joined = [group[0] if len(group) == 1 else _joined(graph, operator, group, operators) for group in groups]
            operator.inputs = joined
        operators.append(operator)
    graph.operators = operators
    return tuple(dict.fromkeys(changed))


def _joined(graph: Any, operator: Any, group: list[int], operators: list[Any]) -> int:
    """Append the join of some of an operator's inputs; its tensor."""
    whole, axis = graph.tensors[int(operator.outputs[0])], operator.builtinOptions.axis % len(graph.tensors[int(operator.outputs[0])].shape)
    found, step = copy.copy(whole), copy.copy(operator)
    found.shape = [sum(int(graph.tensors[i].shape[axis]) for i in group) if place == axis else int(n) for place, n in enumerate(whole.shape)]
    found.name = f"{flatbuffer.text(whole.name)}/group{len(graph.tensors)}".encode()
    graph.tensors.append(found)
    step.inputs, step.outputs = group, [len(graph.tensors) - 1]
    operators.append(step)
    return len(graph.tensors) - 1


def multiply(model: Any) -> tuple[str, ...]:
    """Make FULLY_CONNECTED whose weights are computed (attention) BATCH_MATMUL: CMSIS-NN's dense kernel with MVE wants weights before it runs.

    The names of the layers changed.
    """
    graph, made, changed = model.subgraphs[0], flatbuffer.schema(), []
    none = made.ActivationFunctionType.NONE
    for operator in graph.operators:
        if flatbuffer.op_name(model, operator) != "FULLY_CONNECTED" or operator.builtinOptions.fusedActivationFunction != none:
            continue
        given, out = graph.tensors[int(operator.inputs[0])], graph.tensors[int(operator.outputs[0])]
        bias = len(operator.inputs) > 2 and int(operator.inputs[2]) >= 0
        if bias or flatbuffer.constant(model, graph.tensors[int(operator.inputs[1])]) is not None or len(given.shape) != len(out.shape):
            continue
        operator.inputs, operator.opcodeIndex = [int(i) for i in operator.inputs[:2]], flatbuffer.op_code(model, "BATCH_MATMUL", 1)
        operator.builtinOptionsType, operator.builtinOptions = made.BuiltinOptions.BatchMatMulOptions, made.BatchMatMulOptionsT()
        operator.builtinOptions.adjY = True
        changed.append(flatbuffer.text(out.name))
    return tuple(changed)


def refuse_loops(graph: Graph, name: str) -> None:
    """Refuse control flow, also in a model that is still in float: no quantizer makes integers of it. Raises `ConversionError` by operator."""
    loops = [o for o in graph.operators if o.type in LOOPS]
    if loops:
        hint = "unroll the recurrent layer (Keras: unroll=True), run one step at a time with its state as an input, or use convolutions over time"
        raise ConversionError(f"{name}: {loops[0].type} ({loops[0].name}) is a loop, which stays in float and is not for microcontrollers", hint)


def refuse(graph: Graph, name: str) -> None:
    """Refuse what no integer-only core runs: loops, weights of a dynamic-range model, float activations. Raises `ConversionError` by operator."""
    refuse_loops(graph, name)
    left = [(o, t) for o in graph.operators if o.type not in EDGES for t in _data(graph, o) if t.dtype in FLOATS]
    if not left:
        return
    operator, tensor = left[0]
    dynamic = [o for o, _ in left if any(graph.tensors[i].dtype == "int8" and graph.tensors[i].constant for i in o.inputs if i >= 0)]
    if dynamic:
        hint = "give the float model and --calibration, so that activations become integers too"
        raise ConversionError(f"{name}: {dynamic[0].type} ({dynamic[0].name}) has int8 weights beside float activations (dynamic range)", hint)
    kinds = ", ".join(sorted({o.type for o, _ in left}))
    what = f"{name}: {operator.type} ({operator.name}) computes in {tensor.dtype}, and the artifact must be fully integer (float: {kinds})"
    raise ConversionError(what, "give --calibration; or replace the layer by one with an integer form")


def _data(graph: Graph, operator: Operator) -> list[Any]:
    return [graph.tensors[i] for i in (*operator.inputs, *operator.outputs) if i >= 0]


def _is_global(model: Any, graph: Any, operator: Any) -> bool:
    source, axes = graph.tensors[int(operator.inputs[0])], flatbuffer.constant(model, graph.tensors[int(operator.inputs[1])])
    if source.shape is None or len(source.shape) != 4 or axes is None or source.type != flatbuffer.schema().TensorType.FLOAT32:
        return False
    return {int(a) % 4 for a in axes.reshape(-1)} == {1, 2}


def _pool(model: Any, graph: Any, operator: Any) -> list[Any]:
    import numpy as np

    made = flatbuffer.schema()
    source, out = graph.tensors[int(operator.inputs[0])], graph.tensors[int(operator.outputs[0])]
    pool, options = made.OperatorT(), made.Pool2DOptionsT()
    options.filterHeight, options.filterWidth = (int(n) for n in source.shape[1:3])
    options.strideH = options.strideW = 1
    options.padding, options.fusedActivationFunction = made.Padding.VALID, made.ActivationFunctionType.NONE
    pool.opcodeIndex, pool.inputs = flatbuffer.op_code(model, "AVERAGE_POOL_2D", 1), [int(operator.inputs[0])]
    pool.builtinOptionsType, pool.builtinOptions = made.BuiltinOptions.Pool2DOptions, options
    if len(out.shape) == 4:
        pool.outputs = [int(operator.outputs[0])]
        return [pool]
    pooled, shape = made.TensorT(), np.asarray(out.shape, np.int32)
    pooled.name, pooled.type, pooled.shape, pooled.buffer = flatbuffer.text(out.name).encode() + b"/pooled", out.type, [1, 1, 1, 1], 0
    pooled.shape = [int(source.shape[0]), 1, 1, int(source.shape[3])]
    constant = made.TensorT()
    constant.name, constant.type, constant.shape = flatbuffer.text(out.name).encode() + b"/shape", made.TensorType.INT32, [len(shape)]
    constant.buffer = flatbuffer.add_constant(model, shape)
    graph.tensors += [pooled, constant]
    pool.outputs = [len(graph.tensors) - 2]
    return [pool, _reshape(model, len(graph.tensors) - 2, len(graph.tensors) - 1, int(operator.outputs[0]), shape)]


def _reshape(model: Any, source: int, shape_at: int, out: int, shape: Any) -> Any:
    made = flatbuffer.schema()
    reshape, options = made.OperatorT(), made.ReshapeOptionsT()
    options.newShape = [int(n) for n in shape]
    reshape.opcodeIndex, reshape.inputs, reshape.outputs = flatbuffer.op_code(model, "RESHAPE", 1), [source, shape_at], [out]
    reshape.builtinOptionsType, reshape.builtinOptions = made.BuiltinOptions.ReshapeOptions, options
    return reshape
