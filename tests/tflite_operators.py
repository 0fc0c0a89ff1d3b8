"""One-operator TFLite nets over types and parameters, to ask the real delegate about each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.tflite_build import Net, schema

QUANTIZED = {"int8": 0, "uint8": 128, "int16": 0}
ACTIVATIONS = schema.ActivationFunctionType


def port(net: Net, name: str, shape: Any, dtype: str, scale: float = 0.05) -> int:
    return net.tensor(name, shape, dtype, scale=scale if dtype in QUANTIZED else None, zero_point=QUANTIZED.get(dtype, 0))


def values(net: Net, name: str, shape: Any, dtype: str, scale: Any = 0.05, axis: int = 0) -> int:
    array = np.full(shape, 0.5).astype(np.float32) if dtype.startswith("float") else np.ones(shape, dtype)
    return net.constant(name, array.astype(dtype), **({"scale": scale, "axis": axis} if dtype in QUANTIZED else {}))


def integers(net: Net, name: str, numbers: Any) -> int:
    return net.constant(name, np.asarray(numbers, np.int32))


def unary(kind: str, dtype: str, *, shape: Any = (1, 4, 4, 4), out: Any = None, out_dtype: str = "", scale: float = 0.05, out_scale: float = 0.05,
          extra: Any = (), first: Any = (), **options: Any) -> bytes:  # fmt: skip
    net = Net()
    x, y = port(net, "x", shape, dtype, scale), port(net, "y", out or shape, out_dtype or dtype, out_scale)
    before = [integers(net, f"p{i}", numbers) for i, numbers in enumerate(first)]
    after = [integers(net, f"c{i}", numbers) for i, numbers in enumerate(extra)]
    net.add(kind, [*before, x, *after], [y], **options)
    return net.pack([x], [y])


def binary(kind: str, dtype: str, *, scales: tuple[float, float, float] = (0.05, 0.05, 0.05), shapes: Any = ((1, 4, 4, 4), (1, 4, 4, 4)),
           out_dtype: str = "", **options: Any) -> bytes:  # fmt: skip
    net = Net()
    a, b = (port(net, n, s, dtype, q) for n, s, q in zip("ab", shapes, scales, strict=False))
    y = port(net, "y", shapes[0], out_dtype or dtype, scales[2])
    net.add(kind, [a, b], [y], **options)
    return net.pack([a, b], [y])


def convolution(kind: str, dtype: str, *, weights: str = "", scale: Any = 0.05, axis: int | None = None, bias: bool = True, fused: str = "NONE",
                constant: bool = True) -> bytes:  # fmt: skip
    depthwise = kind == "DEPTHWISE_CONV_2D"
    net = Net()
    x, y = port(net, "x", (1, 4, 4, 4), dtype), port(net, "y", (1, 4, 4, 4), dtype, 0.5)
    right_axis = 3 if depthwise else 0
    shape = (1, 3, 3, 4) if depthwise else (4, 3, 3, 4)
    kind_of_weights = weights or ("int8" if dtype == "int16" else dtype)
    w_axis = right_axis if axis is None else axis
    w = values(net, "w", shape, kind_of_weights, scale, w_axis) if constant else port(net, "w", shape, kind_of_weights)
    inputs = [x, w]
    if bias:
        b_dtype = {"float32": "float32", "int16": "int64"}.get(dtype, "int32")
        b_scale = np.atleast_1d(scale) * 0.05 if dtype in QUANTIZED else None
        inputs.append(net.constant("b", np.zeros(4, b_dtype), scale=b_scale))
    table = "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions"
    extra = {"depthMultiplier": 1} if depthwise else {}
    net.add(kind, inputs, [y], version=3, table=table, strideW=1, strideH=1, dilationWFactor=1, dilationHFactor=1,
            fusedActivationFunction=getattr(ACTIVATIONS, fused), **extra)  # fmt: skip
    return net.pack([x] if constant else [x, w], [y])


def dense(dtype: str, *, weights: str = "", scale: Any = 0.05, bias: bool = True, constant: bool = True, axis: int = 0) -> bytes:
    net = Net()
    x, y = port(net, "x", (2, 8), dtype), port(net, "y", (2, 4), dtype, 0.5)
    kind = weights or dtype
    w = values(net, "w", (4, 8), kind, scale, axis) if constant else port(net, "w", (4, 8), kind)
    b_scale = np.atleast_1d(scale) * 0.05 if dtype in QUANTIZED else None
    b = net.constant("b", np.zeros(4, "float32" if dtype == "float32" else "int32"), scale=b_scale)
    net.add("FULLY_CONNECTED", [x, w, b if bias else -1], [y], version=4, table="FullyConnectedOptions")
    return net.pack([x] if constant else [x, w], [y])


def transposed(dtype: str, *, weights: str = "", scale: Any = 0.05, bias: bool = False) -> bytes:
    net = Net()
    x, y = port(net, "x", (1, 4, 4, 4), dtype), port(net, "y", (1, 8, 8, 4), dtype, 0.5)
    w, shape = values(net, "w", (4, 2, 2, 4), weights or dtype, scale), integers(net, "shape", [1, 8, 8, 4])
    b_scale = np.atleast_1d(scale) * 0.05 if dtype in QUANTIZED else None
    biases = [net.constant("b", np.zeros(4, "float32" if dtype == "float32" else "int32"), scale=b_scale)] if bias else []
    net.add("TRANSPOSE_CONV", [shape, w, x, *biases], [y], version=3, table="TransposeConvOptions", strideW=2, strideH=2)
    return net.pack([x], [y])


def parts(dtype: str, count: int) -> bytes:
    net = Net()
    x, outputs = port(net, "x", (1, 2 * count), dtype), [port(net, f"y{i}", (1, 2), dtype) for i in range(count)]
    net.add("SPLIT", [integers(net, "axis", 1), x], outputs, version=2, table="SplitOptions", numSplits=count)
    return net.pack([x], outputs)


def matmul(dtype: str, *, constant: str = "", rank: int = 3) -> bytes:
    net, lead = Net(), (2,) * (rank - 2)
    x, y = port(net, "x", (*lead, 4, 8), dtype), port(net, "y", (*lead, 4, 4), dtype, 0.5)
    w = values(net, "w", (*lead, 8, 4), constant, [0.05]) if constant else port(net, "w", (*lead, 8, 4), dtype)
    net.add("BATCH_MATMUL", [x, w], [y], version=2, table="BatchMatMulOptions")
    return net.pack([x] if constant else [x, w], [y])


def prelu(dtype: str, *, constant: bool = True) -> bytes:
    net = Net()
    x, y = port(net, "x", (1, 4, 4, 4), dtype), port(net, "y", (1, 4, 4, 4), dtype)
    slope = values(net, "slope", (1, 1, 4), dtype) if constant else port(net, "slope", (1, 1, 4), dtype)
    net.add("PRELU", [x, slope], [y])
    return net.pack([x] if constant else [x, slope], [y])


def joined(dtype: str, count: int) -> bytes:
    net = Net()
    inputs = [port(net, f"x{i}", (1, 4), dtype) for i in range(count)]
    y = port(net, "y", (1, 4 * count), dtype)
    net.add("CONCATENATION", inputs, [y], version=2, table="ConcatenationOptions", axis=1)
    return net.pack(inputs, [y])


def cases() -> Iterator[tuple[str, bytes]]:
    """Names and files; every one loads in the runtime or is skipped by the test that asks."""
    for dtype in ("float32", "int8", "uint8", "int16"):
        for group in (_elementwise, _pooled_and_reduced, _moved, _layers, _products, _split_and_joined, _converted):
            yield from group(dtype)
    for extreme in (_hybrid, _scales, _float_only):
        yield from extreme()


def _elementwise(dtype: str) -> Iterator[tuple[str, bytes]]:
    """Functions of one value or of two, with and without broadcasting."""
    for kind in ("ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "GELU", "HARD_SWISH", "LOG", "LOGISTIC", "NEG", "RELU", "RELU6", "RELU_N1_TO_1",
                 "ROUND", "RSQRT", "SIN", "SQRT", "SQUARE", "TANH", "SIGN", "L2_NORMALIZATION", "LOG_SOFTMAX"):  # fmt: skip
        out_scale = {"LOGISTIC": 1 / 256, "TANH": 1 / 128}.get(kind, 0.05)
        version = 2 if dtype == "int8" and kind in ("LOGISTIC", "TANH", "ABS") else 1
        yield f"{kind} {dtype}", unary(kind, dtype, out_scale=out_scale, version=version)
    for kind, table in (("ADD", "AddOptions"), ("SUB", "SubOptions"), ("MUL", "MulOptions"), ("DIV", "DivOptions")):
        yield f"{kind} {dtype}", binary(kind, dtype, version=2 if dtype == "int8" else 1, table=table)
        yield f"{kind} {dtype} broadcast", binary(kind, dtype, shapes=((1, 4, 4, 4), (4,)), version=2 if dtype == "int8" else 1, table=table)
    for kind in ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "POW", "FLOOR_DIV", "EQUAL"):
        version, out_dtype = 2 if dtype == "int8" and kind != "POW" else 1, "bool" if kind == "EQUAL" else ""
        yield f"{kind} {dtype}", binary(kind, dtype, version=version, out_dtype=out_dtype)
    yield f"SOFTMAX {dtype}", unary("SOFTMAX", dtype, out_scale=1 / 256, version=2, table="SoftmaxOptions", beta=1.0)
    yield f"SOFTMAX {dtype} beta 2", unary("SOFTMAX", dtype, out_scale=1 / 256, version=2, table="SoftmaxOptions", beta=2.0)
    yield f"LEAKY_RELU {dtype}", unary("LEAKY_RELU", dtype, version=2, table="LeakyReluOptions", alpha=0.1)


def _pooled_and_reduced(dtype: str) -> Iterator[tuple[str, bytes]]:
    """Pools, also over nothing; reductions over several axes, kept and dropped."""
    pool = {"table": "Pool2DOptions", "strideW": 2, "strideH": 2, "filterWidth": 2, "filterHeight": 2}
    for kind in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        yield f"{kind} {dtype}", unary(kind, dtype, out=(1, 2, 2, 4), version=2, **pool)
        yield f"{kind} {dtype} stride 3", unary(kind, dtype, out=(1, 2, 2, 4), version=2, **pool | {"strideW": 3, "strideH": 3})
        yield f"{kind} {dtype} 1x1", unary(kind, dtype, version=2, **pool | {"strideW": 1, "strideH": 1, "filterWidth": 1, "filterHeight": 1})
    for kind in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
        for axes, out in (([1, 2], (1, 1, 1, 4)), ([3], (1, 4, 4, 1)), ([2], (1, 4, 1, 4))):
            yield f"{kind} {dtype} {axes}", unary(kind, dtype, out=out, extra=[axes], version=2, table="ReducerOptions", keepDims=True)
        yield f"{kind} {dtype} dropped", unary(kind, dtype, out=(1, 4), extra=[[1, 2]], version=2, table="ReducerOptions", keepDims=False)


def _moved(dtype: str) -> Iterator[tuple[str, bytes]]:
    """What only moves or resizes."""
    yield f"RESHAPE {dtype}", unary("RESHAPE", dtype, out=(1, 64), extra=[[1, 64]], table="ReshapeOptions", newShape=[1, 64])
    yield f"SQUEEZE {dtype}", unary("SQUEEZE", dtype, out=(4, 4, 4), table="SqueezeOptions", squeezeDims=[0])
    for axis, what in ((0, "scalar"), ([0], "list"), (-1, "negative")):
        shape = (1, 1, 4, 4, 4) if axis != -1 else (1, 4, 4, 4, 1)
        yield f"EXPAND_DIMS {dtype} {what}", unary("EXPAND_DIMS", dtype, out=shape, extra=[axis], table="ExpandDimsOptions")
    yield f"PAD {dtype}", unary("PAD", dtype, out=(1, 6, 6, 4), extra=[[[0, 0], [1, 1], [1, 1], [0, 0]]], version=2, table="PadOptions")
    yield f"MIRROR_PAD {dtype}", unary("MIRROR_PAD", dtype, out=(1, 6, 6, 4), extra=[[[0, 0], [1, 1], [1, 1], [0, 0]]], table="MirrorPadOptions")
    yield f"TRANSPOSE {dtype}", unary("TRANSPOSE", dtype, extra=[[0, 3, 1, 2]], version=2, table="TransposeOptions")
    yield f"SLICE {dtype}", unary("SLICE", dtype, out=(1, 2, 2, 4), extra=[[0, 1, 1, 0], [1, 2, 2, 4]], version=2, table="SliceOptions")
    for step, shrink in ((1, 0), (2, 0), (1, 1)):
        out = (4 // step, 4, 4) if shrink else (1, 4 // step, 4, 4)
        yield (f"STRIDED_SLICE {dtype} step {step} shrink {shrink}",
               unary("STRIDED_SLICE", dtype, out=out, extra=[[0] * 4, [1, 4, 4, 4], [1, step, 1, 1]], version=2, table="StridedSliceOptions",
                     shrinkAxisMask=shrink))  # fmt: skip
    for kind, table in (("RESIZE_BILINEAR", "ResizeBilinearOptions"), ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions")):
        yield f"{kind} {dtype}", unary(kind, dtype, out=(1, 8, 8, 4), extra=[[8, 8]], version=3, table=table, halfPixelCenters=True)
    for block in (1, 2):
        deep, wide = (1, 4 // block, 4 // block, 4 * block * block), (1, 4 * block, 4 * block, 4 // (block * block))
        yield f"SPACE_TO_DEPTH {dtype} {block}", unary("SPACE_TO_DEPTH", dtype, out=deep, table="SpaceToDepthOptions", blockSize=block)
        yield f"DEPTH_TO_SPACE {dtype} {block}", unary("DEPTH_TO_SPACE", dtype, out=wide, table="DepthToSpaceOptions", blockSize=block)


def _layers(dtype: str) -> Iterator[tuple[str, bytes]]:
    """Layers with weights: fused, without bias, per channel, with weights given at run time."""
    for kind in ("CONV_2D", "DEPTHWISE_CONV_2D"):
        yield f"{kind} {dtype}", convolution(kind, dtype)
        yield f"{kind} {dtype} RELU6", convolution(kind, dtype, fused="RELU6")
        yield f"{kind} {dtype} TANH", convolution(kind, dtype, fused="TANH")
        yield f"{kind} {dtype} without bias", convolution(kind, dtype, bias=False)
        yield f"{kind} {dtype} per channel", convolution(kind, dtype, scale=[0.1, 0.2, 0.3, 0.4])
        yield f"{kind} {dtype} weights given", convolution(kind, dtype, constant=False)
    if dtype != "int16":
        yield f"TRANSPOSE_CONV {dtype}", transposed(dtype)
        yield f"TRANSPOSE_CONV {dtype} bias", transposed(dtype, bias=True)
        yield f"TRANSPOSE_CONV {dtype} per channel", transposed(dtype, scale=[0.1, 0.2, 0.3, 0.4], bias=True)
        yield f"PRELU {dtype}", prelu(dtype)
        yield f"PRELU {dtype} slope given", prelu(dtype, constant=False)
        yield f"FULLY_CONNECTED {dtype}", dense(dtype)
        yield f"FULLY_CONNECTED {dtype} without bias", dense(dtype, bias=False)
        yield f"FULLY_CONNECTED {dtype} weights given", dense(dtype, constant=False)
        yield f"FULLY_CONNECTED {dtype} per channel", dense(dtype, scale=[0.1, 0.2, 0.3, 0.4])


def _products(dtype: str) -> Iterator[tuple[str, bytes]]:
    """Matrix products by rank."""
    for rank in (2, 3, 4):
        yield f"BATCH_MATMUL {dtype} rank {rank}", matmul(dtype, rank=rank)
        yield f"BATCH_MATMUL {dtype} rank {rank} constant", matmul(dtype, rank=rank, constant=dtype)


def _split_and_joined(dtype: str) -> Iterator[tuple[str, bytes]]:
    """By the number of parts: the delegate takes few."""
    for count in (2, 3, 4, 5):
        yield f"SPLIT {dtype} {count}", parts(dtype, count)
    for count in (2, 3, 4, 5, 6):
        yield f"CONCATENATION {dtype} {count}", joined(dtype, count)


def _converted(dtype: str) -> Iterator[tuple[str, bytes]]:
    """Between types, and between scales of one type."""
    if dtype != "float32":
        yield f"QUANTIZE float32 to {dtype}", unary("QUANTIZE", "float32", out_dtype=dtype, table="QuantizeOptions")
        yield f"DEQUANTIZE {dtype}", unary("DEQUANTIZE", dtype, out_dtype="float32", version=2, table="DequantizeOptions")
        yield f"QUANTIZE {dtype} again", unary("QUANTIZE", dtype, out_scale=0.07, table="QuantizeOptions")
        yield f"LEAKY_RELU {dtype} tiny slope", unary("LEAKY_RELU", dtype, version=2, table="LeakyReluOptions", alpha=0.001)
    if dtype == "uint8":
        yield "QUANTIZE int8 to uint8", unary("QUANTIZE", "int8", out_dtype="uint8", table="QuantizeOptions")


def _hybrid() -> Iterator[tuple[str, bytes]]:
    """Integer weights beside float activations."""
    yield "CONV_2D hybrid", convolution("CONV_2D", "float32", weights="int8", scale=[0.1, 0.2, 0.3, 0.4])
    yield "CONV_2D hybrid per tensor", convolution("CONV_2D", "float32", weights="int8")
    yield "DEPTHWISE_CONV_2D hybrid", convolution("DEPTHWISE_CONV_2D", "float32", weights="int8", scale=[0.1, 0.2, 0.3, 0.4])
    yield "TRANSPOSE_CONV hybrid", transposed("float32", weights="int8", scale=[0.1, 0.2, 0.3, 0.4])
    yield "TRANSPOSE_CONV hybrid per tensor", transposed("float32", weights="int8")
    yield "BATCH_MATMUL hybrid", matmul("float32", constant="int8")
    yield "FULLY_CONNECTED hybrid", dense("float32", weights="int8", scale=[0.1, 0.2, 0.3, 0.4])
    yield "FULLY_CONNECTED hybrid per tensor", dense("float32", weights="int8")


def _scales() -> Iterator[tuple[str, bytes]]:
    """Ratios of scales, to the ends of what the kernels multiply by."""
    for ratio in (2.0**-12, 2.0**-9, 1.0, 100.0, 300.0):
        yield f"ADD int8 scale ratio {ratio}", binary("ADD", "int8", scales=(0.01 * ratio, 0.01, 0.01), version=2, table="AddOptions")
        yield f"SUB int8 scale ratio {ratio}", binary("SUB", "int8", scales=(0.01, 0.01 * ratio, 0.01), version=2, table="SubOptions")
    for product in (2.0**-18, 2.0**-14, 1.0, 200.0, 300.0):
        yield f"MUL int8 scale product {product}", binary("MUL", "int8", scales=(product, 1.0, 1.0), version=2, table="MulOptions")


def _float_only() -> Iterator[tuple[str, bytes]]:
    """Operators asked in float alone, and tensors of many dimensions."""
    for kind in ("CAST", "TILE", "GATHER", "ARG_MAX", "SHAPE"):
        extra = {"TILE": [[1, 1, 1, 2]], "GATHER": [[0, 1]], "ARG_MAX": [3]}.get(kind, [])
        table = {"CAST": {"table": "CastOptions", "inDataType": 0, "outDataType": 2}, "GATHER": {"table": "GatherOptions", "axis": 3},
                 "ARG_MAX": {"table": "ArgMaxOptions", "outputType": 2}, "SHAPE": {"table": "ShapeOptions", "outType": 2}}.get(kind, {})  # fmt: skip
        out = {"TILE": (1, 4, 4, 8), "GATHER": (1, 4, 4, 2), "ARG_MAX": (1, 4, 4), "SHAPE": (4,)}.get(kind, (1, 4, 4, 4))
        out_dtype = "int32" if kind in ("CAST", "ARG_MAX", "SHAPE") else ""
        yield f"{kind} float32", unary(kind, "float32", out=out, out_dtype=out_dtype, extra=extra, **table)
    yield "ADD float32 rank 7", binary("ADD", "float32", shapes=((1,) * 7, (1,) * 7), table="AddOptions")
    yield "ADD float32 rank 6", binary("ADD", "float32", shapes=((1,) * 6, (1,) * 6), table="AddOptions")
