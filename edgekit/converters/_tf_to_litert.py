"""A frozen TensorFlow function -> LiteRT, with TensorFlow's own converter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from edgekit.converters import _litert_result, _tflite_edges
from edgekit.errors import ConversionError
from edgekit.formats import Model, _tf, tflite_flatbuffer
from edgekit.formats._quiet import quiet


def convert(model: Model, workdir: Path) -> Model:
    """Convert a Keras model or SavedModel that was opened. Raises `ConversionError` naming operators LiteRT does not have."""
    function = model.handle.function
    with quiet() as said:
        import tensorflow as tf

        converter = tf.lite.TFLiteConverter.from_concrete_functions([function], function)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        try:
            data = bytes(converter.convert())
        except Exception as error:  # the converter raises its own types, with a compiler dump
            raise ConversionError(f"{model.name}: {_blame(str(error) + said(), function.graph.as_graph_def())}", _HINT) from error
    return _litert_result.result(model, tflite_flatbuffer.write(workdir / f"{model.name}.tflite", _named(data, model)), ())


_HINT = "replace these layers by built-in operators; Select TensorFlow (Flex) operators need a library of many megabytes in the app"


def _named(data: bytes, model: Model) -> bytes:
    inputs = _ends(data, _tf.INPUT, len(model.signature.inputs))
    outputs = _ends(data, _tf.OUTPUT, len(model.signature.outputs))
    names = model.signature
    return _tflite_edges.rename(
        data,
        [(inputs[i], spec.name) for i, spec in enumerate(names.inputs)],
        [(outputs[i], spec.name) for i, spec in enumerate(names.outputs)],
    )


def _ends(data: bytes, kind: str, count: int) -> list[int]:
    """Tensor indices of the numbered ends, by the names the frozen function gave them, else by the file's own order."""
    tensors, order = _tflite_edges.end_tensors(data, inputs=kind == _tf.INPUT)
    found = {int(number): index for name, index in tensors.items() for number in re.findall(rf"{kind}_(\d+)", name)[:1]}
    if set(found) == set(range(count)):
        return [found[i] for i in range(count)]
    if len(order) != count:
        raise ConversionError(f"the converter returned {len(order)} ends for {count}")
    return order


def _blame(said: str, graph_def: Any) -> str:
    """Which operators TensorFlow's converter names, and a layer that has each."""
    listed = re.findall(r"(Flex|Custom) ops: ([\w, ]+)", said)
    wanted = sorted({name.strip() for _, names in listed for name in names.split(",") if name.strip()})
    if not wanted:
        wanted = sorted(set(re.findall(r"'tf\.(\w+)' op", said)))
    if wanted:
        layers = {node.op: node.name for node in _tf.reachable_nodes(graph_def)}
        return "operators that LiteRT does not have: " + ", ".join(f"{op} (layer {layers.get(op, 'unknown')})" for op in wanted)
    errors = [line.strip() for line in said.splitlines() if "error:" in line]
    return f"TensorFlow's converter failed: {(errors or said.strip().splitlines() or ['no reason given'])[0][:300]}"
