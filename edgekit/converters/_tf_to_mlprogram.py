"""A frozen TensorFlow function -> Core ML's ML Program, with coremltools."""

from __future__ import annotations

import re
from pathlib import Path

from edgekit.converters import _mlprogram_result
from edgekit.errors import ConversionError
from edgekit.formats import Model, _tf, mlprogram_write
from edgekit.formats._quiet import quiet


def convert(model: Model, workdir: Path) -> Model:
    """Convert a Keras model or SavedModel that was opened. Raises `ConversionError` naming the operator that has no translation."""
    ct = mlprogram_write.coremltools_with_tensorflow()
    function = model.handle.function
    inputs = [ct.TensorType(name=_node(tensor), shape=spec.shape) for tensor, spec in zip(function.inputs, model.signature.inputs, strict=True)]
    outputs = [ct.TensorType(name=_node(tensor)) for tensor in function.outputs]
    try:
        with quiet():
            converted = ct.convert([function], source="tensorflow", inputs=inputs, outputs=outputs, **_mlprogram_result.settings())
    except Exception as error:  # coremltools raises what its parts raise
        raise ConversionError(f"{model.name}: {_blame(str(error), function.graph.as_graph_def())}", "replace these layers") from error
    return _mlprogram_result.result(model, converted, workdir)


def _node(tensor: object) -> str:
    return str(getattr(tensor, "name", "")).partition(":")[0]


def _blame(said: str, graph_def: object) -> str:
    wanted = re.search(r"op of type (\w+)|Op type (\w+)|operator '?(\w+)'? not", said)
    name = next((part for part in wanted.groups() if part), "") if wanted else ""
    layers = {node.op: node.name for node in _tf.reachable_nodes(graph_def)}
    if name in layers:
        return f"{name} (layer {layers[name]}) has no counterpart in Core ML"
    return f"coremltools failed: {(said.strip().splitlines() or ['no reason given'])[0][:300]}"
