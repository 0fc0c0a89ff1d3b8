"""Small float .tflite models for tests, written with the schema that ai-edge-litert ships."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit import target
from edgekit.backends import Artifact, Context, litert
from edgekit.formats import Model
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.tensors import Array, Arrays, Signature, TensorSpec, dequantize, quantize

Floats = NDArray[np.float32]


class Builder:
    """Adds tensors and operators in order; `write` gives the opened model."""

    def __init__(self, *inputs: tuple[str, tuple[int, ...]]) -> None:
        made = flatbuffer.schema()
        self.model, self.graph = made.ModelT(), made.SubGraphT()
        self.model.version, self.model.operatorCodes, self.model.buffers = 3, [], [made.BufferT()]
        self.model.subgraphs, self.graph.tensors, self.graph.operators = [self.graph], [], []
        self.graph.inputs = [self.tensor(name, shape) for name, shape in inputs]

    def tensor(self, name: str, shape: Sequence[int], values: NDArray[Any] | None = None) -> int:
        made = flatbuffer.schema().TensorT()
        made.name, made.shape, made.hasRank = name.encode(), list(shape), True
        types = flatbuffer.schema().TensorType
        made.type = types.FLOAT32 if values is None else getattr(types, values.dtype.name.upper())
        made.buffer = 0 if values is None else flatbuffer.add_constant(self.model, values)
        self.graph.tensors.append(made)
        return len(self.graph.tensors) - 1

    def constant(self, name: str, values: NDArray[Any]) -> int:
        return self.tensor(name, values.shape, values)

    def op(self, kind: str, inputs: Sequence[int], name: str, shape: Sequence[int], options: Any = None, version: int = 1) -> int:
        made = flatbuffer.schema().OperatorT()
        output = self.tensor(name, shape)
        made.opcodeIndex = flatbuffer.op_code(self.model, kind, version)
        made.inputs, made.outputs = list(inputs), [output]
        if options is not None:
            made.builtinOptions = options
            made.builtinOptionsType = getattr(flatbuffer.schema().BuiltinOptions, type(options).__name__[:-1])
        self.graph.operators.append(made)
        return output

    def conv(self, x: int, name: str, weight: Floats, bias: Floats, *, relu: bool = False, stride: int = 1) -> int:
        """CONV_2D, SAME padding; `weight` is [outputs, height, width, inputs]."""
        options = flatbuffer.schema().Conv2DOptionsT()
        options.strideH = options.strideW = stride
        options.dilationHFactor = options.dilationWFactor = 1
        options.fusedActivationFunction = int(relu)
        _, height, width, _ = self.graph.tensors[x].shape
        shape = (1, -(-height // stride), -(-width // stride), weight.shape[0])
        return self.op("CONV_2D", [x, self.constant(f"{name}/w", weight), self.constant(f"{name}/b", bias)], name, shape, options)

    def depthwise(self, x: int, name: str, weight: Floats, bias: Floats) -> int:
        """DEPTHWISE_CONV_2D, SAME padding; `weight` is [1, height, width, channels]."""
        options = flatbuffer.schema().DepthwiseConv2DOptionsT()
        options.strideH = options.strideW = options.depthMultiplier = 1
        options.dilationHFactor = options.dilationWFactor = 1
        inputs = [x, self.constant(f"{name}/w", weight), self.constant(f"{name}/b", bias)]
        return self.op("DEPTHWISE_CONV_2D", inputs, name, self.graph.tensors[x].shape, options)

    def dense(self, x: int, name: str, weight: Floats, bias: Floats, *, relu: bool = False) -> int:
        """FULLY_CONNECTED; `weight` is [outputs, inputs]."""
        options = flatbuffer.schema().FullyConnectedOptionsT()
        options.fusedActivationFunction = int(relu)
        inputs = [x, self.constant(f"{name}/w", weight), self.constant(f"{name}/b", bias)]
        return self.op("FULLY_CONNECTED", inputs, name, (self.graph.tensors[x].shape[0], weight.shape[0]), options)

    def write(self, folder: Path, *outputs: int, name: str = "net") -> Model:
        """Write the file; the model as a format module would open it."""
        self.graph.outputs = list(outputs)
        path = folder / f"{name}.tflite"
        path.write_bytes(flatbuffer.dump(self.model))
        specs = [tuple(self._spec(i) for i in indices) for indices in (self.graph.inputs, self.graph.outputs)]
        return Model("tflite", name, Signature(*specs), "0" * 64, path=path)

    def _spec(self, index: int) -> TensorSpec:
        tensor = self.graph.tensors[index]
        return TensorSpec(tensor.name.decode(), tuple(int(size) for size in tensor.shape), "float32")


def floats(random: np.random.Generator, *shape: int, scale: float = 1.0) -> Floats:
    """Values of a normal distribution."""
    return (random.standard_normal(shape) * scale).astype(np.float32)


def image_like(count: int, shape: tuple[int, ...] = (1, 8, 8, 3), seed: int = 1) -> list[dict[str, Floats]]:
    """Samples of the input x whose neighbors are alike, as in images."""
    random = np.random.default_rng(seed)
    maps = random.standard_normal((count, 1, 2, 2, shape[3])).repeat(4, 2).repeat(4, 3)
    return [{"x": (maps[k] + 0.2 * random.standard_normal(shape)).astype(np.float32)} for k in range(count)]


def small_net(folder: Path, seed: int = 0) -> Model:
    """8x8x3 -> conv 3x3 -> depthwise 3x3 -> conv 1x1 of stride 2 -> dense."""
    random = np.random.default_rng(seed)
    b = Builder(("x", (1, 8, 8, 3)))
    one = b.conv(0, "one", floats(random, 16, 3, 3, 3, scale=0.3), floats(random, 16), relu=True)
    two = b.depthwise(one, "two", floats(random, 1, 3, 3, 16, scale=0.3), floats(random, 16))
    three = b.conv(two, "three", floats(random, 24, 1, 1, 16, scale=0.3), floats(random, 24), relu=True, stride=2)
    flat = b.op("RESHAPE", [three, b.constant("shape", np.array([1, 384], np.int32))], "flat", (1, 384))
    return b.write(folder, b.dense(flat, "y", floats(random, 10, 384, scale=0.1), floats(random, 10)))


def context(folder: Path, calibration: Sequence[Arrays], io: str = "float32") -> Context:
    """What the backend builds from."""
    return Context(target.load("android-arm64"), calibration, folder, io=io)


def outputs(artifact: Artifact, inputs: Arrays) -> dict[str, Array]:
    """The artifact's outputs in real values, of inputs in real values."""
    session, signature = litert.emulate(artifact), artifact.signature
    found = session.run({spec.name: quantize(inputs[spec.name], spec) for spec in signature.inputs})
    return {spec.name: dequantize(found[spec.name], spec) for spec in signature.outputs}
