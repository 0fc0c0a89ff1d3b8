"""Small float .tflite models for tests, written with the schema that ai-edge-litert ships."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.formats import Model
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.tensors import Signature, TensorSpec

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
