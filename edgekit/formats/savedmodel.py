"""TensorFlow SavedModel folders, old and new; `folder#signature` names a signature where `serving_default` is not meant."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from edgekit import fingerprint
from edgekit.errors import ConversionError, UsageError, close_match
from edgekit.formats import Model, Session, Shapes, _tf
from edgekit.formats._quiet import quiet
from edgekit.formats._source import digest_of_files, fix_shapes
from edgekit.tensors import Signature

DEFAULT_SIGNATURE = "serving_default"


def open(reference: str, inputs: Shapes) -> Model:
    """Open a SavedModel and freeze one signature.

    A SavedModel keeps its inputs and outputs by name without an order: they are taken in the names' order.
    Raises `UsageError` for a signature that is not there, `ConversionError` for a damaged folder or a model in training mode.
    """
    path, key = fingerprint.split(reference)
    graph_def, sources, results, inputs_specs = _frozen_graph(path, key)
    _tf.check_inference_mode(graph_def, path.name)
    specs, notices = fix_shapes(inputs_specs, inputs)
    with quiet():
        function = _tf.inlined(_tf.import_graph(graph_def, [sources[s.name] for s in specs], list(results.values()), specs), specs)
    signature = Signature(specs, _tf.output_specs(function, list(results), specs))
    name = path.resolve().name + (f"-{key}" if key else "")
    return Model("savedmodel", name, signature, digest_of_files(path), path, _tf.Frozen(function), notices)


def session(model: Model) -> Session:
    """Run the frozen function in TensorFlow."""
    return _tf.FunctionSession(model.handle.function, model.signature)


def _frozen_graph(path: Path, key: str) -> tuple[Any, dict[str, str], dict[str, str], Any]:
    """The frozen graph, tensor names by input and by output name, and the inputs' specs."""
    tf = _tf.tensorflow()
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_from_session_graph

    # the loader of TensorFlow 1 reads both kinds, also those whose Keras objects a newer Keras does not restore
    with quiet(), tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as running:
        try:
            meta = tf.compat.v1.saved_model.loader.load(running, ["serve"], str(path))
        except Exception as error:  # the loader raises a dozen types
            hint = "is the folder complete, with its variables?"
            raise ConversionError(f"{path}: not a readable SavedModel ({_first_line(error)})", hint) from error
        signature = _signature(meta.signature_def, key, path)
        sources = {name: signature.inputs[name].name for name in _tf.natural_order(list(signature.inputs))}
        results = {name: signature.outputs[name].name for name in _tf.natural_order(list(signature.outputs))}
        specs = _tf.specs_of([graph.get_tensor_by_name(tensor) for tensor in sources.values()], list(sources))
        try:
            kept = [tensor.split(":")[0] for tensor in results.values()]
            graph_def = convert_variables_to_constants_from_session_graph(running, graph.as_graph_def(), kept)
        except Exception as error:  # freezing raises as many
            unset = re.search(r"Could not find variable ([^\s.]+)", str(error))
            why = f"the variable {unset[1]} has no value" if unset else _first_line(error)
            hint = "save it after its variables were set" if unset else "keep tables and strings outside the model"
            raise ConversionError(f"{path}: the signature {key or DEFAULT_SIGNATURE} cannot be frozen ({why})", hint) from error
        return graph_def, sources, results, specs


def _signature(found: Any, key: str, path: Path) -> Any:
    """The signature `key`; where none is named the default one, or the only one there is."""
    usable = [name for name, signature in found.items() if signature.inputs and signature.outputs]
    key = key or (usable[0] if len(usable) == 1 else DEFAULT_SIGNATURE)
    if key not in usable:
        hint = f"{close_match(key, usable)}; give {path}#SIGNATURE" if usable else "save the model with a serving signature"
        raise UsageError(f"{path}: no signature is called {key!r}", hint)
    return found[key]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
