"""Where real values enter and leave: quantization of inputs, dequantization of outputs, operators that the plan leaves to the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgekit.errors import ConversionError, require
from edgekit.tensors import Array
from edgekit.virtual.dpu.arithmetic import HIGHEST, LOWEST

Run = Callable[[Sequence[Array]], Sequence[Array]]


def quantizer(position: int) -> Run:
    """Real values to int8: times 2^position (exact), rounded half to even, saturated."""
    import numpy as np

    scale = np.float32(2.0**position)

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        return (np.clip(np.rint(arrays[0] * scale), LOWEST, HIGHEST).astype(np.int8),)

    return run


def dequantizer(position: int) -> Run:
    """int8 to float32: times 2^-position (exact)."""
    import numpy as np

    scale = np.float32(2.0**-position)
    return lambda arrays: (arrays[0].astype(np.float32) * scale,)


def float_operator(proto: Any, node: Any, given: Sequence[str], outputs: Sequence[str], constants: Mapping[str, Array]) -> Run:
    """One operator in ONNX Runtime. Raises `ConversionError` when it refuses it."""
    import onnx

    ort = require("onnxruntime", extra="onnx", purpose="running the operators that stay on the CPU")
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)}
    ends = [[onnx.helper.make_tensor_value_info(name, kinds.get(name, onnx.TensorProto.FLOAT), None) for name in names] for names in (given, outputs)]
    stored = [onnx.numpy_helper.from_array(constants[name], name) for name in dict.fromkeys(node.input) if name in constants]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "cpu", *ends, stored), opset_imports=list(proto.opset_import), ir_version=proto.ir_version
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the bindings raise a class of their own per status
        raise ConversionError(f"{outputs[0]}: ONNX Runtime refuses {node.op_type} on the CPU: {str(error).splitlines()[0][:200]}") from error
    names = list(outputs)
    return lambda arrays: session.run(names, dict(zip(given, arrays, strict=True)))
