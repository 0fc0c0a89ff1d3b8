"""An artifact whose intermediate tensors are outputs too, so that a device's values can be compared operator by operator."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

from edgekit.backends import Artifact, Tap
from edgekit.backends.litert import signatures
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.tensors import Signature, TensorSpec


def tapped(artifact: Artifact, out: Path) -> tuple[Artifact, tuple[Tap, ...]]:
    """Write `artifact` to `out` with every tensor that an operator of the main graph computes as an output, after the artifact's own.

    Tensors of types that no job carries (resources, strings) and of unknown shape are left out.
    """
    model = flatbuffer.load(artifact.path.read_bytes(), artifact.path.name)
    graph = model.subgraphs[0]
    signatures.unique_names(model)
    _, own = signatures.edges(model, artifact.signature)
    named = {index: spec.name for index, spec in zip(own, artifact.signature.outputs, strict=True)}
    taps, added = [], []
    for number, operator in enumerate(graph.operators):
        for index in map(int, operator.outputs):
            spec = _spec(model, index, named)
            if spec is None:
                continue
            taps.append(Tap(spec.name, number, flatbuffer.op_name(model, operator)))
            if index not in named:
                added.append((index, spec))
    signature = Signature(artifact.signature.inputs, artifact.signature.outputs + tuple(spec for _, spec in added))
    graph.outputs = [*own, *(index for index, _ in added)]
    _publish(model, signature)
    flatbuffer.write(out, flatbuffer.dump(model))
    return dataclasses.replace(artifact, path=out, signature=signature, runtime_names={}), tuple(taps)


def _spec(model: Any, index: int, named: dict[int, str]) -> TensorSpec | None:
    tensor = model.subgraphs[0].tensors[index]
    if flatbuffer.numpy_dtype(tensor.type) is None or tensor.shape is None or any(int(size) < 1 for size in tensor.shape):
        return None
    name = named.get(index) or flatbuffer.text(tensor.name)
    return signatures.stored_spec(model, index, msgspec.convert({"name": name, "shape": [], "dtype": "float32"}, TensorSpec))


def _publish(model: Any, signature: Signature) -> None:
    """Name the graph's ends in the file's own signature, in order."""
    made, graph = flatbuffer.schema(), model.subgraphs[0]
    inputs, _ = signatures.edges(model, Signature(signature.inputs, tuple(signature.outputs)))
    definition = made.SignatureDefT()
    definition.signatureKey, definition.subgraphIndex = b"serving_default", 0
    definition.inputs = [flatbuffer.entry(spec.name, index) for spec, index in zip(signature.inputs, inputs, strict=True)]
    definition.outputs = [flatbuffer.entry(spec.name, index) for spec, index in zip(signature.outputs, graph.outputs, strict=True)]
    model.signatureDefs = [definition]
