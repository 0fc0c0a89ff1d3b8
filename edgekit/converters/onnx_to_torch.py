"""ONNX -> PyTorch: the graph as an exported program, operator by operator. The way from ONNX to what has PyTorch's converters only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgekit.errors import ConversionError, require
from edgekit.formats import Model
from edgekit.formats._onnx_graph import layer
from edgekit.formats._torch_program import export
from edgekit.legalize import onnx_prepare, onnx_resize
from edgekit.tensors import Array

SOURCE = "onnx"
RESULT = "torch"


def convert(model: Model, workdir: Path) -> Model:
    """Convert an opened ONNX model of known shapes. Raises `ConversionError` naming operator and layer without translation."""
    del workdir
    torch = require("torch", extra="torch", purpose="converting ONNX to PyTorch")
    prepared = onnx_resize.written_out(onnx_prepare.prepare(model), onnx_resize.ACROSS)
    graph = prepared.model.handle.graph
    ends = [prepared.inputs[spec.name] for spec in model.signature.inputs], [prepared.outputs[spec.name] for spec in model.signature.outputs]
    examples = onnx_prepare.random_inputs(model.signature, 0)
    flat = tuple(torch.from_numpy(examples[spec.name]) for spec in model.signature.inputs)
    program = export(_module(graph, *ends), flat, {}, model.name)
    return Model("torch", model.name, model.signature, model.digest, handle=program, notices=prepared.notices, examples=model.examples)


def _module(graph: Any, inputs: list[str], outputs: list[str]) -> Any:
    """A `torch.nn.Module` that runs the graph's nodes in order."""
    import torch

    from edgekit.converters._onnx_torch_call import Call
    from edgekit.converters._onnx_torch_operators import OPERATORS

    known = _constants(graph)
    for node in graph.node:
        if node.domain not in ("", "ai.onnx") or (node.op_type not in OPERATORS and node.op_type != "Constant"):
            raise ConversionError(f"{node.op_type} in layer {layer(node)} has no translation to PyTorch", "give the model's PyTorch or Keras source")
    nodes = [node for node in graph.node if node.op_type != "Constant"]

    class Graph(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.places = {name: f"constant_{index}" for index, name in enumerate(known)}
            for name, place in self.places.items():
                self.register_buffer(place, torch.from_numpy(known[name].copy()))

        def forward(self, *values: Any) -> Any:
            found = dict(zip(inputs, values, strict=True))
            for node in nodes:
                given = tuple(None if not name else getattr(self, self.places[name]) if name in self.places else found[name] for name in node.input)
                fixed = tuple(known.get(name) for name in node.input)
                made = OPERATORS[node.op_type](Call(node.op_type, layer(node), _attributes(node), given, fixed, len(node.output)))
                found.update(zip(node.output, made if isinstance(made, tuple) else (made,), strict=True))
            return tuple(found[name] for name in outputs)

    return Graph().eval()


def _constants(graph: Any) -> dict[str, Array]:
    numpy_helper = require("onnx.numpy_helper", extra="onnx", purpose="reading an ONNX model")
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def _attributes(node: Any) -> dict[str, Any]:
    helper = require("onnx.helper", extra="onnx", purpose="reading an ONNX model")
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
