"""Keras models: `.keras` and `.h5` files, or a model that a function returned."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit.errors import ConversionError, UsageError, require
from edgekit.formats import Model, Session, Shapes, _tf
from edgekit.formats._quiet import quiet
from edgekit.formats._source import digest_of_files, fix_shapes
from edgekit.tensors import Arrays, Signature, TensorSpec


def open(reference: str, inputs: Shapes) -> Model:
    """Open a `.keras` or `.h5` file.

    Raises `ConversionError` for a damaged file, weights alone, custom classes, and layers that hold Python code (they are never run).
    """
    path = Path(reference)
    keras = _keras()
    try:
        with quiet():
            loaded = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras and h5py raise a dozen types
        raise ConversionError(f"{path}: {_reason(error)}", _hint(error)) from error
    return _model(loaded, path.stem, digest_of_files(path), inputs, path=path)


def from_module(module: Any, examples: Any, inputs: Shapes, name: str) -> Model:
    """A model of a Keras model in memory; `examples` are arrays in the order of its inputs, or by name."""
    _keras()
    return _model(module, name, _digest(module), inputs, examples)


def session(model: Model) -> Session:
    """Run the Keras model itself, in inference mode."""
    return _tf.FunctionSession(_caller(model.handle.source), model.signature)


def _keras() -> Any:
    _tf.tensorflow()
    keras = require("keras", extra="tensorflow", purpose="reading a Keras model")
    if keras.backend.backend() != "tensorflow":
        raise UsageError(f"Keras runs on {keras.backend.backend()} here, and conversion needs TensorFlow", "set KERAS_BACKEND=tensorflow")
    return keras


def _model(keras_model: Any, name: str, digest: str, inputs: Shapes, examples: Any = None, path: Path | None = None) -> Model:
    if not getattr(keras_model, "inputs", None) or not getattr(keras_model, "outputs", None):
        raise ConversionError(f"{name}: a subclassed model states no inputs", "build it as a functional model, or export it to a SavedModel")
    stateful = next((layer.name for layer in keras_model._flatten_layers() if getattr(layer, "stateful", False)), None)
    if stateful:
        hint = "build it with stateful=False, and make the state an input and an output (initial_state, return_state)"
        raise ConversionError(f"{name}: the layer {stateful} keeps state between calls (stateful=True)", hint)
    names = [_input_name(tensor) for tensor in keras_model.inputs]
    specs, notices = fix_shapes(_tf.specs_of(keras_model.inputs, names), inputs)
    try:
        with quiet():
            function = _tf.freeze_call(_caller(keras_model), specs)
    except Exception as error:  # tracing runs the layers' own code
        raise ConversionError(f"{name}: cannot be traced ({_first_line(error)})", "is every layer built from TensorFlow operations?") from error
    _tf.check_inference_mode(function.graph.as_graph_def(), name)
    outputs = _tf.output_specs(function, _output_names(keras_model), specs)
    kept = _examples(examples, specs)
    return Model("keras", name, Signature(specs, outputs), digest, path, _tf.Frozen(function, keras_model), notices, kept)


def _caller(keras_model: Any) -> Any:
    """The model as a function from flat inputs to flat outputs."""
    import keras

    structure = _structure(keras_model, "input")

    def call(*tensors: Any) -> Sequence[Any]:
        packed = keras.tree.pack_sequence_as(structure, list(tensors))
        return list(keras.tree.flatten(keras_model(packed, training=False)))

    return call


def _structure(keras_model: Any, end: str) -> Any:
    """How the model takes or gives its tensors; a Sequential model has this only after it was called, and has one of each."""
    try:
        return getattr(keras_model, end)
    except AttributeError:
        return getattr(keras_model, f"{end}s")[0]


def _input_name(tensor: Any) -> str:
    """The name of the input layer: a tensor's own name is numbered by process when nobody chose one."""
    return str(tensor._keras_history.operation.name)


def _output_names(keras_model: Any) -> list[str]:
    structure = _structure(keras_model, "output")
    names = sorted(structure) if isinstance(structure, Mapping) else list(getattr(keras_model, "output_names", ())) or ["output_0"]
    return names if len(set(names)) == len(names) else [f"output_{i}" for i in range(len(keras_model.outputs))]


def _examples(examples: Any, specs: Sequence[TensorSpec]) -> Arrays | None:
    import numpy as np

    if examples is None:
        return None
    if not isinstance(examples, Mapping):
        flat = examples if isinstance(examples, (tuple, list)) else (examples,)
        examples = dict(zip([spec.name for spec in specs], flat, strict=False))
    arrays = {spec.name: np.asarray(examples[spec.name], spec.dtype) for spec in specs if spec.name in examples}
    fits = all(spec.name in arrays and arrays[spec.name].shape == spec.shape for spec in specs)
    return arrays if fits else None


def _digest(keras_model: Any) -> str:
    """SHA-256 (hex) of the architecture and the weights."""
    total = hashlib.sha256(keras_model.to_json().encode())
    for weight in keras_model.weights:
        total.update(str(weight.path).encode() + weight.numpy().tobytes())
    return total.hexdigest()


def _reason(error: Exception) -> str:
    text = str(error)
    if "lambda" in text.lower():
        return "it holds a Lambda layer, whose Python code edgekit does not run"
    if own := _own_class(text):
        return f"it is built with the class {own}, which only your code has"
    if "No model config" in text:
        return "it holds weights alone"
    return f"not a Keras model that can be loaded ({_first_line(error)})"


def _own_class(text: str) -> str:
    """The class that Keras does not know, by what it says of it; empty where that is not the trouble."""
    found = re.search(r"(?:Could not locate (?:class|function)|Unknown [\w ]+:) '([^']+)'", text)
    return found[1] if found else ""


def _hint(error: Exception) -> str:
    text = str(error)
    if "lambda" in text.lower() or _own_class(text):
        return "give package.module:function that builds the model, with its own classes"
    return "save the whole model: model.save('model.keras')"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
