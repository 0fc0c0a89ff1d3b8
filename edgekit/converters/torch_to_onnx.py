"""PyTorch -> ONNX, with PyTorch's own exporter (the one built on `torch.export`)."""

from __future__ import annotations

from pathlib import Path

from edgekit.converters import _onnx_result
from edgekit.converters.torch_to_litert import check_operators, example_tensors, flat_module
from edgekit.errors import ConversionError, require
from edgekit.formats import Model
from edgekit.formats._quiet import quiet

SOURCE = "torch"
RESULT = "onnx"

OPSET = 18


def convert(model: Model, workdir: Path) -> Model:
    """Convert an exported program. Raises `ConversionError` when PyTorch's exporter has no translation for an operator."""
    require("onnxscript", extra="onnx", purpose="exporting PyTorch to ONNX")
    check_operators(model.handle)
    inputs = [f"edgekit_input_{i}" for i in range(len(model.signature.inputs))]
    outputs = [f"edgekit_output_{i}" for i in range(len(model.signature.outputs))]
    with quiet():
        import torch

        module = flat_module(model.handle, model.handle.module())
        try:
            program = torch.onnx.export(
                module, example_tensors(model), dynamo=True, opset_version=OPSET, input_names=inputs, output_names=outputs, verbose=False
            )
        except Exception as error:  # the exporter raises its own types
            raise ConversionError(f"{model.name}: PyTorch's ONNX exporter failed: {_reason(error)}", "replace that operator") from error
    return _onnx_result.result(model, program.model_proto, (inputs, outputs), workdir)


def _reason(error: BaseException) -> str:
    """The innermost cause: the outer layers only say which step failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
