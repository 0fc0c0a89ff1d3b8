"""Small integer nets for the microcontroller backends, built node by node; the scales are chosen so that outputs move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgekit.formats import tflite_flatbuffer
from tests.tflite_build import Net


def classifier(path: Path, *, versions: int = 3, softmax: bool = True, extra: str = "", depth: int = 10, flat: bool = True) -> Path:
    """8x8x3 -> conv 3x3 -> depthwise 3x3 -> average pool 8x8 -> reshape (if `flat`) -> dense without bias -> softmax, all int8."""
    rng, net = np.random.default_rng(4), Net()
    x = net.tensor("image", (1, 8, 8, 3), "int8", scale=0.02, zero_point=3)
    a = net.tensor("a", (1, 8, 8, 8), "int8", scale=0.05, zero_point=-100)
    weights = net.constant("w0", rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8), scale=np.linspace(0.002, 0.01, 8))
    bias = net.constant("b0", rng.integers(-500, 500, 8).astype(np.int32), scale=0.02 * np.linspace(0.002, 0.01, 8))
    conv = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    net.add("CONV_2D", [x, weights, bias], [a], version=versions, table="Conv2DOptions", fusedActivationFunction=1, **conv)
    b = net.tensor("b", (1, 8, 8, 8), "int8", scale=0.04, zero_point=7)
    weights = net.constant("w1", rng.integers(-127, 128, (1, 3, 3, 8)).astype(np.int8), scale=np.linspace(0.001, 0.004, 8), axis=3)
    bias = net.constant("b1", np.zeros(8, np.int32), scale=0.05 * np.linspace(0.001, 0.004, 8))
    net.add("DEPTHWISE_CONV_2D", [a, weights, bias], [b], version=versions, table="DepthwiseConv2DOptions", depthMultiplier=1, **conv)
    c = net.tensor("c", (1, 1, 1, 8), "int8", scale=0.04, zero_point=7)
    net.add("AVERAGE_POOL_2D", [b], [c], table="Pool2DOptions", filterHeight=8, filterWidth=8, strideH=1, strideW=1, padding=1)
    d = net.tensor("d", (1, 8), "int8", scale=0.04, zero_point=7) if flat else c
    if flat:
        net.add("RESHAPE", [c, net.constant("shape", np.array([1, 8], np.int32))], [d])
    e = net.tensor("logits", (1, depth), "int8", scale=0.08, zero_point=-5)
    weights = net.constant("w2", rng.integers(-127, 128, (depth, 8)).astype(np.int8), scale=0.02)
    net.add("FULLY_CONNECTED", [d, weights], [e], version=4, table="FullyConnectedOptions")
    if extra:
        made = net.tensor("extra", (1, depth), "int8", scale=1 / 256, zero_point=-128)
        net.add(extra, [e], [made])
        e = made
    if softmax:
        made = net.tensor("scores", (1, depth), "int8", scale=1 / 256, zero_point=-128)
        net.add("SOFTMAX", [e], [made], table="SoftmaxOptions", beta=1.0)
        e = made
    path.write_bytes(net.pack([x], [e]))
    return path


def channels_first(path: Path, *, flat: bool = False) -> Path:
    """3x8x8 (or, `flat`, 3x64 as one row) -> transposed -> convolution of 8 channels -> transposed back, as converters leave PyTorch's nets."""
    rng, net = np.random.default_rng(5), Net()
    size = (1, 64) if flat else (8, 8)
    x = net.tensor("image", (1, 3, 64) if flat else (1, 3, *size), "int8", scale=0.02, zero_point=3)
    first, quantized = x, {"scale": 0.02, "zero_point": 3}
    if flat:
        first = net.tensor("rows", (1, 3, *size), "int8", **quantized)
        net.add("RESHAPE", [x, net.constant("shape", np.array([1, 3, *size], np.int32))], [first])
    a = net.tensor("a", (1, *size, 3), "int8", **quantized)
    net.add("TRANSPOSE", [first, net.constant("order", np.array([0, 2, 3, 1], np.int32))], [a], table="TransposeOptions", version=2)
    b = net.tensor("b", (1, *size, 8), "int8", scale=0.05, zero_point=-10)
    weights = net.constant("w0", rng.integers(-127, 128, (8, 1, 3, 3)).astype(np.int8), scale=np.linspace(0.002, 0.01, 8))
    bias = net.constant("b0", rng.integers(-500, 500, 8).astype(np.int32), scale=0.02 * np.linspace(0.002, 0.01, 8))
    conv = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    net.add("CONV_2D", [a, weights, bias], [b], version=3, table="Conv2DOptions", fusedActivationFunction=0, **conv)
    y = net.tensor("y", (1, 8, *size), "int8", scale=0.05, zero_point=-10)
    net.add("TRANSPOSE", [b, net.constant("back", np.array([0, 3, 1, 2], np.int32))], [y], table="TransposeOptions", version=2)
    path.write_bytes(net.pack([x], [y]))
    return path


def softmax_alone(path: Path, scale: float, beta: float, depth: int) -> Path:
    """SOFTMAX of int8 as the only operator."""
    net = Net()
    x = net.tensor("x", (1, depth), "int8", scale=scale, zero_point=0)
    y = net.tensor("y", (1, depth), "int8", scale=1 / 256, zero_point=-128)
    net.add("SOFTMAX", [x], [y], table="SoftmaxOptions", beta=beta)
    path.write_bytes(net.pack([x], [y]))
    return path


def dynamic_range(path: Path) -> Path:
    """A dense layer with int8 weights beside float activations."""
    net = Net()
    x, y = net.tensor("x", (1, 8)), net.tensor("y", (1, 4))
    weights = net.constant("w", np.ones((4, 8), np.int8), scale=0.1)
    net.add("FULLY_CONNECTED", [x, weights], [y], version=3, table="FullyConnectedOptions")
    path.write_bytes(net.pack([x], [y]))
    return path


def reference(path: Path, inputs: Any) -> Any:
    """LiteRT's reference kernels on an array a sample, of the only input; the only output."""
    from edgekit.formats import tflite

    opened = tflite.open(str(path), {})
    session = tflite.session(opened, reference_kernels=True)
    (name,) = (spec.name for spec in opened.signature.inputs)
    return [next(iter(session.run({name: x}).values())) for x in inputs]


def wide(path: Path) -> Path:
    """A classifier of int16 activations and int8 weights (16x8): convolution, average pool, dense."""
    rng, net = np.random.default_rng(8), Net()
    x = net.tensor("image", (1, 8, 8, 3), "int16", scale=1 / 8192)
    a = net.tensor("a", (1, 8, 8, 8), "int16", scale=1 / 4096)
    scales = np.linspace(0.002, 0.01, 8)
    weights = net.constant("w0", rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8), scale=scales)
    bias = net.constant("b0", rng.integers(-500, 500, 8).astype(np.int64), scale=scales / 8192)
    conv = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    net.add("CONV_2D", [x, weights, bias], [a], version=4, table="Conv2DOptions", fusedActivationFunction=1, **conv)
    b = net.tensor("b", (1, 1, 1, 8), "int16", scale=1 / 4096)
    net.add("AVERAGE_POOL_2D", [a], [b], version=3, table="Pool2DOptions", filterHeight=8, filterWidth=8, strideH=1, strideW=1, padding=1)
    c = net.tensor("scores", (1, 8), "int16", scale=1 / 4096)
    net.add("RESHAPE", [b, net.constant("shape", np.array([1, 8], np.int32))], [c])
    path.write_bytes(net.pack([x], [c]))
    return path


def before_the_sigmoid(path: Path, out: Path) -> Path:
    """The model up to its last FULLY_CONNECTED: the probability behind it is 0 for whatever is no wake word."""
    model = tflite_flatbuffer.load(path.read_bytes())
    graph = model.subgraphs[0]
    last = next(op for op in reversed(graph.operators) if tflite_flatbuffer.op_name(model, op) == "FULLY_CONNECTED")
    graph.outputs = [int(last.outputs[0])]
    graph.operators = graph.operators[: graph.operators.index(last) + 1]
    model.signatureDefs = None
    return tflite_flatbuffer.write(out, tflite_flatbuffer.dump(model))
