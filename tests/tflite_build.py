"""Small TFLite files made from a few lines, for tests: tensors and operators in, bytes out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema


@dataclasses.dataclass
class Net:
    """Add tensors and operators, then `write`. Shapes may hold -1 (stored as 1, with a shape signature)."""

    tensors: list[Any] = dataclasses.field(default_factory=list)
    operators: list[Any] = dataclasses.field(default_factory=list)
    codes: list[Any] = dataclasses.field(default_factory=list)
    buffers: list[Any] = dataclasses.field(default_factory=lambda: [schema.BufferT()])
    signatures: list[Any] = dataclasses.field(default_factory=list)

    def tensor(self, name: str, shape: Any, dtype: str = "float32", *, scale: Any = None, zero_point: Any = 0, axis: int = 0) -> int:
        found = schema.TensorT()
        found.name, found.type = name, getattr(schema.TensorType, dtype.upper())
        found.shape = [max(n, 1) for n in shape]
        if -1 in shape:
            found.shapeSignature = list(shape)
        if scale is not None:
            found.quantization = schema.QuantizationParametersT()
            found.quantization.scale = np.atleast_1d(np.asarray(scale, np.float32))
            found.quantization.zeroPoint = np.zeros(found.quantization.scale.size, np.int64) + zero_point
            found.quantization.quantizedDimension = axis
        self.tensors.append(found)
        return len(self.tensors) - 1

    def constant(self, name: str, values: Any, **quantization: Any) -> int:
        array = np.asarray(values)
        index = self.tensor(name, array.shape, array.dtype.name, **quantization)
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(array.tobytes(), np.uint8)
        self.buffers.append(buffer)
        self.tensors[index].buffer = len(self.buffers) - 1
        return index

    def add(self, kind: str, inputs: list[int], outputs: list[int], *, version: int = 1, custom: bool = False, **options: Any) -> None:
        code = schema.OperatorCodeT()
        builtin = schema.BuiltinOperator.CUSTOM if custom else getattr(schema.BuiltinOperator, kind)
        code.builtinCode, code.deprecatedBuiltinCode, code.version = builtin, min(builtin, 127), version
        code.customCode = kind if custom else None
        self.codes.append(code)
        operator = schema.OperatorT()
        operator.opcodeIndex, operator.inputs, operator.outputs = len(self.codes) - 1, inputs, outputs
        if "table" in options:
            table = options.pop("table")
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, table)
            operator.builtinOptions = getattr(schema, table + "T")()
            for key, value in options.items():
                assert hasattr(operator.builtinOptions, key), key
                setattr(operator.builtinOptions, key, value)
        self.operators.append(operator)

    def signature(self, inputs: dict[str, int], outputs: dict[str, int], key: str = "serving_default") -> None:
        found = schema.SignatureDefT()
        found.signatureKey = key
        found.inputs, found.outputs = ([_map(name, index) for name, index in ports.items()] for ports in (inputs, outputs))
        self.signatures.append(found)

    def pack(self, inputs: list[int], outputs: list[int]) -> bytes:
        graph = schema.SubGraphT()
        graph.tensors, graph.operators, graph.inputs, graph.outputs = self.tensors, self.operators, inputs, outputs
        model = schema.ModelT()
        model.version, model.operatorCodes, model.subgraphs, model.buffers = 3, self.codes, [graph], self.buffers
        model.signatureDefs = self.signatures or None
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def write(self, path: Path, inputs: list[int], outputs: list[int]) -> Path:
        path.write_bytes(self.pack(inputs, outputs))
        return path


def _map(name: str, index: int) -> Any:
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = name, index
    return entry
