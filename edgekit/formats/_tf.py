"""TensorFlow graphs: one frozen function with static shapes, in the order of a signature, however the model was stored."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgekit.errors import ConversionError, require
from edgekit.formats._quiet import quiet
from edgekit.formats._source import DYNAMIC, image_layout
from edgekit.tensors import DTYPES, Array, Arrays, Signature, TensorSpec

INPUT, OUTPUT = "edgekit_input", "edgekit_output"
"""Names of the frozen function's ends (`edgekit_input_0`, ...): converters find them by these, never by shape."""


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A concrete function without variables. `function.inputs` and `outputs` are in the signature's order. `source` is a Keras model, if any."""

    function: Any
    source: Any = None


@dataclasses.dataclass(frozen=True)
class FunctionSession:
    """A callable on TensorFlow tensors, in the signature's order."""

    call: Callable[..., Sequence[Any]]
    signature: Signature

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Outputs by name."""
        import tensorflow as tf

        values = self.call(*(tf.constant(inputs[spec.name]) for spec in self.signature.inputs))
        return {spec.name: value.numpy() for spec, value in zip(self.signature.outputs, values, strict=True)}


def tensorflow() -> Any:
    """TensorFlow, told to be silent and to leave GPUs alone.

    Raises `ConversionError` in a process that holds the HTP simulator: its library exports an RE2 of its own to the whole process, and a
    TensorFlow that is loaded later runs into it and crashes. The other order works.
    """
    if "onnxruntime_qnn" in sys.modules and "tensorflow" not in sys.modules:
        raise ConversionError(
            "TensorFlow cannot be loaded after the HTP simulator (onnxruntime-qnn) in one process", "read this model in a process of its own"
        )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    with quiet():
        return require("tensorflow", extra="tensorflow", purpose="reading a TensorFlow model")


def specs_of(tensors: Sequence[Any], names: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Specs of symbolic tensors; a dynamic size is -1. Raises `ConversionError` for an unknown rank, and for text."""
    made = []
    for tensor, name in zip(tensors, names, strict=True):
        dtype = getattr(tensor.dtype, "name", str(tensor.dtype))
        if dtype not in DTYPES:
            raise ConversionError(f"{name}: is of type {dtype}, and edgekit takes tensors of numpy's numeric types", "keep it outside the model")
        if tensor.shape is None or (hasattr(tensor.shape, "rank") and tensor.shape.rank is None):
            raise ConversionError(f"{name}: even the number of dimensions is unknown", "export the model with static shapes")
        shape = tuple(DYNAMIC if size is None else int(size) for size in tensor.shape)
        made.append(TensorSpec(name, shape, dtype, layout=image_layout(shape, dtype, "NHWC")))
    return tuple(made)


def freeze_call(call: Callable[..., Sequence[Any]], inputs: Sequence[TensorSpec]) -> Any:
    """A frozen function of a Python callable on tensors."""
    import tensorflow as tf

    def named(*tensors: Any) -> Any:
        return tuple(tf.identity(value, name=f"{OUTPUT}_{i}") for i, value in enumerate(call(*tensors)))

    traced = tf.function(named, autograph=False).get_concrete_function(*_tensor_specs(inputs))
    return inlined(traced, inputs)


def import_graph(graph_def: Any, sources: Sequence[str], results: Sequence[str], inputs: Sequence[TensorSpec]) -> Any:
    """A function of a frozen graph whose tensors `sources` are replaced by inputs of static shape."""
    import tensorflow as tf

    for called in graph_def.library.function:  # stated for the arguments before freezing, and wrong since
        called.attr.pop("_input_shapes", None)
    _own_function_names(graph_def)

    def imported(*tensors: Any) -> Any:
        found = tf.graph_util.import_graph_def(graph_def, dict(zip(sources, tensors, strict=True)), list(results), name="")
        return tuple(tf.identity(value, name=f"{OUTPUT}_{i}") for i, value in enumerate(found))

    return tf.compat.v1.wrap_function(imported, _tensor_specs(inputs))


def _own_function_names(graph_def: Any) -> None:
    """Number the graph's functions and add its hash: TensorFlow keeps one table of functions for all models of a process."""
    names = natural_order([function.signature.name for function in graph_def.library.function])
    _rename_functions(graph_def, {name: f"fn{i}" for i, name in enumerate(names)})
    own = hashlib.sha256(graph_def.SerializeToString(deterministic=True)).hexdigest()[:12]
    _rename_functions(graph_def, {f"fn{i}": f"fn{i}_{own}" for i in range(len(names))})


def _rename_functions(graph_def: Any, names: Mapping[str, str]) -> None:
    for function in graph_def.library.function:
        function.signature.name = names[function.signature.name]
    for gradient in graph_def.library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
    for node in nodes(graph_def):
        node.op = names.get(node.op, node.op)
        for attribute in node.attr.values():
            for called in (*([attribute.func] if attribute.HasField("func") else []), *attribute.list.func):
                called.name = names.get(called.name, called.name)


def inlined(function: Any, inputs: Sequence[TensorSpec]) -> Any:
    """The same function with its calls of other functions put in place: not every converter looks inside calls."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    flat = convert_variables_to_constants_v2(function, lower_control_flow=False, aggressive_inlining=True)
    return import_graph(flat.graph.as_graph_def(), [t.name for t in flat.inputs], [t.name for t in flat.outputs], inputs)


def output_specs(function: Any, names: Sequence[str], inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Specs of the function's outputs; sizes that the graph does not state are found by running it on zeros."""
    import numpy as np
    import tensorflow as tf

    tensors = list(function.outputs)
    if any(t.shape.rank is None or None in t.shape for t in tensors):
        tensors = list(function(*(tf.constant(np.zeros(s.shape, s.dtype)) for s in inputs)))
    return specs_of(tensors, names)


def natural_order(names: Sequence[str]) -> list[str]:
    """Sorted as people number: `output_2` before `output_10`."""
    return sorted(names, key=lambda name: [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part])


def check_inference_mode(graph_def: Any, name: str) -> None:
    """Raise `ConversionError` when batch statistics or dropout are active in the graph."""
    for node in reachable_nodes(graph_def):
        # true is the operator's default, and a SavedModel leaves defaults out
        batch = node.op.startswith("FusedBatchNorm") and "Grad" not in node.op and ("is_training" not in node.attr or node.attr["is_training"].b)
        dropped = "Random" in node.op and "dropout" in node.name.lower()
        if batch or dropped:
            what = f"{name}: exported in training mode: {node.op} in layer {node.name} is active as in training"
            raise ConversionError(what, "export it with training=False")


def reachable_nodes(graph_def: Any) -> list[Any]:
    """Nodes of the graph and of the functions it calls; a SavedModel also holds functions for training, which inference never calls."""
    bodies = {function.signature.name: function.node_def for function in graph_def.library.function}
    found, waiting = [], [graph_def.node]
    seen: set[str] = set()
    while waiting:
        for node in waiting.pop():
            found.append(node)
            for name in sorted(_called(node) & bodies.keys() - seen):
                seen.add(name)
                waiting.append(bodies[name])
    return found


def _called(node: Any) -> set[str]:
    attributes = node.attr.values()
    return {node.op} | {a.func.name for a in attributes if a.HasField("func")} | {called.name for a in attributes for called in a.list.func}


def nodes(graph_def: Any) -> list[Any]:
    """Every node, in functions as well, called or not."""
    return [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]


def _tensor_specs(inputs: Sequence[TensorSpec]) -> list[Any]:
    import tensorflow as tf

    return [tf.TensorSpec(spec.shape, spec.dtype, name=f"{INPUT}_{i}") for i, spec in enumerate(inputs)]
