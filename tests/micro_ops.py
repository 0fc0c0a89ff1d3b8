"""One-operator integer nets for every operator that TensorFlow Lite Micro registers and a converter can emit in int8 or int16.

Scales and constants are chosen so that outputs move. A case adds itself to a net, so that several can share one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from edgekit.quantize import exact
from tests.tflite_build import Net

Ends = tuple[list[int], list[int]]
SHAPE = (1, 4, 4, 4)
ZERO_POINTS = {"int8": 3, "int16": 0}
CONV = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
POOL = {"table": "Pool2DOptions", "filterHeight": 2, "filterWidth": 2, "strideH": 2, "strideW": 2, "padding": 1}


@dataclasses.dataclass(frozen=True)
class Case:
    """`add` puts the operator and its tensors into a net and gives its inputs and outputs."""

    operator: str
    dtype: str
    add: Callable[[Net], Ends]

    @property
    def name(self) -> str:
        return f"{self.operator} {self.dtype}"


def pack(cases: Sequence[Case]) -> bytes:
    """The cases as one net: its inputs and outputs are theirs, in order."""
    net = Net()
    ends = [case.add(net) for case in cases]
    return net.pack([i for inputs, _ in ends for i in inputs], [i for _, outputs in ends for i in outputs])


def tensor(net: Net, shape: Any, dtype: str, scale: float = 0.05, zero_point: int | None = None) -> int:
    name = f"t{len(net.tensors)}"
    if dtype not in ZERO_POINTS:
        return net.tensor(name, shape, dtype)
    return net.tensor(name, shape, dtype, scale=scale, zero_point=ZERO_POINTS[dtype] if zero_point is None else zero_point)


def constant(net: Net, values: Any, **quantization: Any) -> int:
    return net.constant(f"c{len(net.tensors)}", np.asarray(values), **quantization)


def numbers(net: Net, values: Any) -> int:
    return constant(net, np.asarray(values, np.int32))


def random(seed: int, shape: Any, dtype: str = "int8") -> Any:
    return np.random.default_rng(seed).integers(-127, 128, shape).astype(dtype)


def one(operator: str, dtype: str, *, shape: Any = SHAPE, out: Any = None, out_dtype: str = "", scale: float = 0.05, zero_point: int | None = None,
        out_scale: float = 0.05, out_zero: int | None = None, first: Any = (), after: Any = (), outputs: int = 1, version: int = 1,
        **options: Any) -> Case:  # fmt: skip
    """An operator of one activation; `first` and `after` are integer constants before and behind it."""

    def add(net: Net) -> Ends:
        x = tensor(net, shape, dtype, scale, zero_point)
        made = [tensor(net, out or shape, out_dtype or dtype, out_scale, out_zero) for _ in range(outputs)]
        net.add(operator, [*(numbers(net, n) for n in first), x, *(numbers(net, n) for n in after)], made, version=version, **options)
        return [x], made

    return Case(operator, dtype, add)


def two(operator: str, dtype: str, *, shapes: Any = (SHAPE, SHAPE), out: Any = None, out_dtype: str = "", scales: Any = (0.05, 0.04, 0.07),
        version: int = 2, **options: Any) -> Case:  # fmt: skip
    """An operator of two activations."""

    def add(net: Net) -> Ends:
        given = [tensor(net, shape, dtype, scale) for shape, scale in zip(shapes, scales, strict=False)]
        y = tensor(net, out or shapes[0], out_dtype or dtype, scales[2])
        net.add(operator, given, [y], version=version, **options)
        return given, [y]

    return Case(operator, dtype, add)


BY_CHANNEL = "FULLY_CONNECTED by channel"
"""A dense layer with a scale for each channel, as packaging chooses it, beside that with one for all: large, for otherwise one value in a thousand is
another.
"""
GIVEN = f"{BY_CHANNEL}, given scales"


def layer(label: str, dtype: str) -> Case:
    """A convolution or dense layer; convolutions, and dense layers where the label says so, with a scale for each channel."""
    operator, large = label.partition(" by channel")[0], label in (BY_CHANNEL, GIVEN)

    def add(net: Net) -> Ends:
        depthwise, dense = operator == "DEPTHWISE_CONV_2D", operator == "FULLY_CONNECTED"
        shape = (1, 3, 3, 4) if depthwise else (4096, 32) if large else (6, 8) if dense else (4, 3, 3, 4)
        channels = shape[3] if depthwise else shape[0]
        scales, out = np.array([0.01]) if label == "FULLY_CONNECTED" else np.linspace(0.004, 0.02, channels), 0.7 if large else 0.2
        if label == BY_CHANNEL:
            scales = _chosen(tuple(scales), 0.05, out, 255 * 127 * shape[1])
        x = tensor(net, (1, shape[1]) if dense else SHAPE, dtype)
        weights = constant(net, random(1, shape), scale=scales, axis=3 if depthwise else 0)
        bias = constant(net, random(2, channels, "int64" if dtype == "int16" else "int32"), scale=0.05 * scales)
        y = tensor(net, (1, channels) if dense else SHAPE, dtype, out)
        table = {"DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions", "FULLY_CONNECTED": "FullyConnectedOptions"}.get(operator, "Conv2DOptions")
        options = {} if dense else CONV | ({"depthMultiplier": 1} if depthwise else {})
        net.add(operator, [x, weights, bias], [y], version=4 if dense else 3, table=table, fusedActivationFunction=0, **options)
        return [x], [y]

    return Case(label, dtype, add)


@functools.cache
def _chosen(scales: tuple[float, ...], given: float, out: float, reach: int) -> Any:
    ends, zero = (np.float32(given), np.float32(out)), ZERO_POINTS["int8"]
    return np.array([exact.weight_scale(np.float32(scale), *ends, -128 - zero, 127 - zero, reach) for scale in scales])


def transposed(dtype: str) -> Case:
    def add(net: Net) -> Ends:
        x, y = tensor(net, SHAPE, dtype), tensor(net, (1, 8, 8, 4), dtype, 0.2)
        scales = np.linspace(0.004, 0.02, 4)
        weights = constant(net, random(3, (4, 2, 2, 4)), scale=scales)
        options = {"table": "TransposeConvOptions", "strideW": 2, "strideH": 2, "padding": 1}
        net.add("TRANSPOSE_CONV", [numbers(net, [1, 8, 8, 4]), weights, x], [y], version=1, **options)
        return [x], [y]

    return Case("TRANSPOSE_CONV", dtype, add)


def with_constant(operator: str, dtype: str, values: Any, *, out: Any = None, scale: float = 0.05, more: Sequence[Any] = (), **options: Any) -> Case:
    """An operator of an activation and quantized constants (slopes of PRELU, the filler of PADV2)."""

    def add(net: Net) -> Ends:
        x, y = tensor(net, SHAPE, dtype), tensor(net, out or SHAPE, dtype)
        held = constant(net, np.asarray(values, dtype), scale=scale, zero_point=ZERO_POINTS[dtype])
        net.add(operator, [x, *(numbers(net, n) for n in more), held], [y], **options)
        return [x], [y]

    return Case(operator, dtype, add)


def selected(dtype: str) -> Case:
    def add(net: Net) -> Ends:
        a, b = tensor(net, SHAPE, dtype), tensor(net, SHAPE, dtype)
        which, y = net.tensor(f"t{len(net.tensors)}", SHAPE, "bool"), tensor(net, SHAPE, dtype)
        net.add("LESS", [a, b], [which], version=2)
        net.add("SELECT_V2", [which, a, b], [y])
        return [a, b], [y]

    return Case("SELECT_V2", dtype, add)


def cases() -> Iterator[Case]:
    """Every case, int8 first."""
    for dtype in ("int8", "int16"):
        yield from _same(dtype)
        yield from _moved(dtype)
    for name in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"):
        yield two(name, "int8", shapes=((1, 16, 16, 4),) * 2, out_dtype="bool", scales=(0.05, 0.05, 0.05))
    yield from _int8_only()


def _same(dtype: str) -> Iterator[Case]:
    """Arithmetic."""
    fine, low = (1 / 256, -128) if dtype == "int8" else (1 / 32768, 0)
    for operator in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
        yield layer(operator, dtype)
    yield transposed(dtype)
    yield two("ADD", dtype, table="AddOptions")
    yield two("SUB", dtype, table="SubOptions")
    yield two("MUL", dtype, table="MulOptions")
    yield two("BATCH_MATMUL", dtype, shapes=((1, 4, 8), (1, 8, 5)), out=(1, 4, 5), scales=(0.05, 0.04, 0.3), table="BatchMatMulOptions")
    yield one("AVERAGE_POOL_2D", dtype, out=(1, 2, 2, 4), version=2, **POOL)
    yield one("MAX_POOL_2D", dtype, out=(1, 2, 2, 4), version=2, **POOL)
    for operator, scale in (("MEAN", 0.05), ("SUM", 0.6)):
        yield one(operator, dtype, out=(1, 4), out_scale=scale, after=[[1, 2]], version=2, table="ReducerOptions", keepDims=False)
    yield one("LOGISTIC", dtype, out_scale=fine, out_zero=low, version=2)
    yield one("TANH", dtype, out_scale=1 / 128 if dtype == "int8" else 1 / 32768, out_zero=0, version=2)
    yield one("SOFTMAX", dtype, shape=(1, 12), out_scale=fine, out_zero=low, version=2, table="SoftmaxOptions", beta=1.0)
    yield one("LEAKY_RELU", dtype, version=2, out_scale=0.04, table="LeakyReluOptions", alpha=0.1)
    yield one("ABS", dtype, version=2, out_scale=0.06)
    yield one("QUANTIZE", dtype, out_scale=0.07, table="QuantizeOptions")
    yield one("DEQUANTIZE", dtype, out_dtype="float32", version=2, table="DequantizeOptions")


def _moved(dtype: str) -> Iterator[Case]:
    """What only moves, compares or repeats values."""
    yield two("CONCATENATION", dtype, out=(1, 4, 4, 8), scales=(0.05, 0.05, 0.05), table="ConcatenationOptions", axis=3)
    yield one("RESHAPE", dtype, out=(1, 64), after=[[1, 64]], table="ReshapeOptions", newShape=[1, 64])
    yield one("SQUEEZE", dtype, out=(4, 4, 4), table="SqueezeOptions", squeezeDims=[0])
    yield one("EXPAND_DIMS", dtype, out=(1, 1, 4, 4, 4), after=[1], table="ExpandDimsOptions")
    yield one("PAD", dtype, out=(1, 6, 6, 4), after=[[[0, 0], [1, 1], [1, 1], [0, 0]]], version=2, table="PadOptions")
    yield one("TRANSPOSE", dtype, after=[[0, 3, 1, 2]], version=2, table="TransposeOptions")
    yield one("SLICE", dtype, out=(1, 2, 2, 4), after=[[0, 1, 1, 0], [1, 2, 2, 4]], version=2, table="SliceOptions")
    yield one("STRIDED_SLICE", dtype, out=(1, 2, 4, 4), after=[[0] * 4, [1, 4, 4, 4], [1, 2, 1, 1]], version=2, table="StridedSliceOptions")
    yield one("SPLIT", dtype, out=(1, 4, 4, 2), first=[3], outputs=2, version=2, table="SplitOptions", numSplits=2)
    yield one("SPLIT_V", dtype, out=(1, 4, 4, 2), after=[[2, 2], 3], outputs=2, table="SplitVOptions", numSplits=2)
    yield two("MAXIMUM", dtype, scales=(0.05, 0.05, 0.05), table="MaximumMinimumOptions")
    yield two("MINIMUM", dtype, scales=(0.05, 0.05, 0.05), table="MaximumMinimumOptions")
    yield one("RESIZE_NEAREST_NEIGHBOR", dtype, out=(1, 8, 8, 4), after=[[8, 8]], version=2, table="ResizeNearestNeighborOptions")
    yield two("PACK", dtype, out=(2, *SHAPE), scales=(0.05, 0.05, 0.05), table="PackOptions", axis=0, valuesCount=2)
    yield one("UNPACK", dtype, shape=(2, 4, 4), out=(4, 4), outputs=2, table="UnpackOptions", axis=0, num=2)


def _int8_only() -> Iterator[Case]:
    yield layer(BY_CHANNEL, "int8")
    yield layer(GIVEN, "int8")
    yield two("SQUARED_DIFFERENCE", "int8", scales=(0.05, 0.05, 0.5))
    yield selected("int8")
    for name in ("REDUCE_MAX", "REDUCE_MIN"):
        yield one(name, "int8", out=(1, 4), after=[[1, 2]], version=2, table="ReducerOptions", keepDims=False)
    yield one("RESIZE_BILINEAR", "int8", out=(1, 8, 8, 4), after=[[8, 8]], version=2, table="ResizeBilinearOptions")
    yield one("MIRROR_PAD", "int8", out=(1, 6, 6, 4), after=[[[0, 0], [1, 1], [1, 1], [0, 0]]], table="MirrorPadOptions")
    yield with_constant("PADV2", "int8", 7, out=(1, 6, 6, 4), more=[[[0, 0], [1, 1], [1, 1], [0, 0]]], version=2, table="PadV2Options")
    yield with_constant("PRELU", "int8", random(5, (1, 1, 4)), scale=0.01)
    yield one("SPACE_TO_DEPTH", "int8", out=(1, 2, 2, 16), table="SpaceToDepthOptions", blockSize=2)
    yield one("DEPTH_TO_SPACE", "int8", out=(1, 8, 8, 1), table="DepthToSpaceOptions", blockSize=2)
    yield one("SPACE_TO_BATCH_ND", "int8", out=(4, 2, 2, 4), after=[[2, 2], [[0, 0], [0, 0]]], version=2)
    yield one("BATCH_TO_SPACE_ND", "int8", shape=(4, 2, 2, 4), out=SHAPE, after=[[2, 2], [[0, 0], [0, 0]]], version=2)
    yield one("ARG_MAX", "int8", out=(1, 4, 4), out_dtype="int32", after=[3], version=2, table="ArgMaxOptions", outputType=2)
    yield one("ARG_MIN", "int8", out=(1, 4, 4), out_dtype="int32", after=[3], version=2, table="ArgMinOptions", outputType=2)
    yield one("GATHER", "int8", out=(1, 4, 4, 2), after=[[2, 0]], version=2, table="GatherOptions", axis=3)
    yield one("GATHER_ND", "int8", shape=(4, 4), out=(2, 4), after=[[[3], [1]]], version=2)
    yield one("REVERSE_V2", "int8", after=[[2]], version=2)
    yield one("BROADCAST_TO", "int8", shape=(1, 1, 4, 4), out=(1, 3, 4, 4), after=[[1, 3, 4, 4]], version=2)
    yield one("HARD_SWISH", "int8", out_scale=0.04)
    yield one("RELU", "int8", out_scale=0.04, version=2)
    yield one("RELU6", "int8", version=2)
    yield one("RSQRT", "int8", zero_point=-128, out_scale=0.02, out_zero=-128, version=2)
    yield one("L2_NORMALIZATION", "int8", shape=(1, 8), out_scale=1 / 128, out_zero=0, version=2, table="L2NormOptions")
    yield one("LOG_SOFTMAX", "int8", shape=(1, 12), out_scale=16 / 256, out_zero=127, version=2)
