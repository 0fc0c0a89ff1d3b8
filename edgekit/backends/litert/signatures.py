"""The names, order and stored types of a `.tflite` file's inputs and outputs, by the product's signature."""

from __future__ import annotations

import re
from typing import Any

from edgekit.errors import ConversionError
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.tensors import Signature, TensorSpec


def edges(model: Any, signature: Signature) -> tuple[list[int], list[int]]:
    """Tensor indices of the main graph's inputs and outputs, in the order of `signature`.

    Names are looked up in the file's own signature, then among tensor names; where they do not occur, the file's order counts.
    Raises `ConversionError` when the counts or the shapes cannot belong together.
    """
    graph = model.subgraphs[0]
    definition = next((d for d in model.signatureDefs or [] if d.subgraphIndex == 0), None)
    inputs = _ordered(graph, list(graph.inputs), definition.inputs if definition else [], signature.inputs)
    outputs = _ordered(graph, list(graph.outputs), definition.outputs if definition else [], signature.outputs)
    return inputs, outputs


def rename_edges(model: Any, signature: Signature) -> None:
    """Give the file `signature`'s names and order: graph inputs and outputs, their tensors, and one signature `serving_default`."""
    graph = model.subgraphs[0]
    graph.inputs, graph.outputs = edges(model, signature)
    definition = flatbuffer.schema().SignatureDefT()
    definition.signatureKey, definition.subgraphIndex = b"serving_default", 0
    definition.inputs = [flatbuffer.entry(spec.name, index) for spec, index in zip(signature.inputs, graph.inputs, strict=True)]
    definition.outputs = [flatbuffer.entry(spec.name, index) for spec, index in zip(signature.outputs, graph.outputs, strict=True)]
    model.signatureDefs = [definition]
    for named in (*definition.inputs, *definition.outputs):
        graph.tensors[named.tensorIndex].name = named.name
    unique_names(model)


def unique_names(model: Any) -> None:
    """Rename tensors so that no two share a name: the graph's edges keep theirs."""
    edge = {id(model.subgraphs[0].tensors[i]) for i in (*model.subgraphs[0].inputs, *model.subgraphs[0].outputs)}
    tensors = [tensor for graph in model.subgraphs for tensor in graph.tensors]
    taken: set[str] = set()
    for tensor in sorted(tensors, key=lambda t: id(t) not in edge):
        name, number = flatbuffer.text(tensor.name) or "tensor", 1
        while name in taken:
            name, number = f"{re.sub(r'#[0-9]+$', '', name)}#{number}", number + 1
        taken.add(name)
        tensor.name = name.encode()


def stored_spec(model: Any, index: int, like: TensorSpec) -> TensorSpec:
    """`like` with the stored dtype, shape, scale and zero point of tensor `index` of the main graph."""
    tensor = model.subgraphs[0].tensors[index]
    shape = tuple(int(size) for size in tensor.shape) if tensor.shape is not None else ()
    quantization = tensor.quantization
    scaled = quantization is not None and quantization.scale is not None and len(quantization.scale) == 1
    return TensorSpec(
        like.name,
        shape,
        flatbuffer.numpy_dtype(tensor.type) or "float32",
        float(quantization.scale[0]) if scaled else None,
        int(quantization.zeroPoint[0]) if scaled and quantization.zeroPoint is not None and len(quantization.zeroPoint) else 0,
        like.layout,
    )


def stored_signature(model: Any, signature: Signature) -> Signature:
    """`signature` with the types and scales that the file stores."""
    inputs, outputs = edges(model, signature)
    return Signature(
        tuple(stored_spec(model, index, spec) for index, spec in zip(inputs, signature.inputs, strict=True)),
        tuple(stored_spec(model, index, spec) for index, spec in zip(outputs, signature.outputs, strict=True)),
    )


def _ordered(graph: Any, indices: list[int], entries: Any, specs: tuple[TensorSpec, ...]) -> list[int]:
    if len(indices) != len(specs):
        named = ", ".join(spec.name for spec in specs)
        raise ConversionError(f"the LiteRT model has {len(indices)} inputs or outputs where its signature has {len(specs)}: {named}")
    by_signature = {flatbuffer.text(named.name): int(named.tensorIndex) for named in entries or []}
    by_tensor = {flatbuffer.text(graph.tensors[i].name): int(i) for i in indices}
    for known in (by_signature, by_tensor):
        if all(spec.name in known for spec in specs):
            return [known[spec.name] for spec in specs]
    return [int(index) for index in indices]
