"""The edges of a .tflite file: names, order and layout of inputs and outputs, rewritten in the flatbuffer itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgekit.errors import ConversionError, require
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.formats._quiet import quiet
from edgekit.tensors import Array, TensorSpec

SIGNATURE = "serving_default"
_NARROW = {"int64": "int32", "float64": "float32"}


def rename(data: bytes, inputs: Sequence[tuple[int, str]], outputs: Sequence[tuple[int, str]]) -> bytes:
    """Give the model one signature with these (tensor index, name) pairs, in this order; the tensors keep their own names."""
    schema, model = flatbuffer.schema(), flatbuffer.load(data)
    graph = model.subgraphs[0]
    graph.inputs = [index for index, _ in inputs]
    graph.outputs = [index for index, _ in outputs]
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = SIGNATURE, 0
    signature.inputs = [flatbuffer.entry(name, index) for index, name in inputs]
    signature.outputs = [flatbuffer.entry(name, index) for index, name in outputs]
    model.signatureDefs = [signature]
    return flatbuffer.dump(model)


def name_by_layer(data: bytes) -> bytes:
    """Give each tensor the name of its layer, computed ones first: the compiler joins the layers that it fused
    (`a;;b;;c;1`), the computing one last.
    """
    model = flatbuffer.load(data)
    for graph in model.subgraphs:
        taken: dict[str, int] = {}
        computed = [graph.tensors[index] for operator in graph.operators for index in operator.outputs]
        made = {id(tensor) for tensor in computed}
        for tensor in (*computed, *(tensor for tensor in graph.tensors if id(tensor) not in made)):
            joined = (tensor.name or b"").decode("utf-8", "replace")
            name = joined.rpartition(";;")[2].partition(";")[0] or joined
            taken[name] = taken.get(name, -1) + 1
            tensor.name = f"{name}#{taken[name]}" if taken[name] else name
    return flatbuffer.dump(model)


def signature_tensors(data: bytes) -> tuple[dict[str, int], dict[str, int]]:
    """Tensor index by name for the inputs and the outputs of the file's first signature, in its own order; empty without one."""
    model = flatbuffer.schema().Model.GetRootAs(data, 0)
    if model.SignatureDefsLength() == 0:
        return {}, {}
    signature = model.SignatureDefs(0)
    inputs = [signature.Inputs(i) for i in range(signature.InputsLength())]
    outputs = [signature.Outputs(i) for i in range(signature.OutputsLength())]
    return {t.Name().decode(): t.TensorIndex() for t in inputs}, {t.Name().decode(): t.TensorIndex() for t in outputs}


def inputs_by_name(data: bytes, names: Sequence[str]) -> dict[str, int]:
    """Tensor index of each input: by the signature, else by the tensor's own name without TensorFlow's decoration.

    Raises `ConversionError` for an input that is not there.
    """
    named = signature_tensors(data)[0] or _decorated_inputs(data)
    missing = [name for name in names if name not in named]
    if missing:
        raise ConversionError(f"the converter lost the input {missing[0]} (it has {', '.join(named)})")
    return {name: named[name] for name in names}


def add_inputs(data: bytes, specs: Sequence[TensorSpec]) -> tuple[bytes, dict[str, int]]:
    """Add inputs that nothing reads, so that the signature stays the source's; their tensor indices by name."""
    if not specs:
        return data, {}
    schema, model = flatbuffer.schema(), flatbuffer.load(data)
    graph = model.subgraphs[0]
    added = {}
    for spec in specs:
        kind = _NARROW.get(spec.dtype, spec.dtype).upper()
        added[spec.name] = _add_tensor(schema, graph, spec.name, spec.shape, getattr(schema.TensorType, kind))
    graph.inputs = [*graph.inputs, *added.values()]
    return flatbuffer.dump(model), added


def transpose_outputs(data: bytes, turned: Mapping[str, tuple[int, tuple[int, ...]]]) -> tuple[bytes, dict[str, int]]:
    """Append a TRANSPOSE behind each (tensor index, order of axes); the new tensors' indices by name."""
    if not turned:
        return data, {}
    import numpy as np

    schema, model = flatbuffer.schema(), flatbuffer.load(data)
    graph = model.subgraphs[0]
    made = {}
    for name, (tensor, order) in turned.items():
        source = graph.tensors[tensor]
        permutation = _add_tensor(schema, graph, f"{name}/order", (len(order),), schema.TensorType.INT32)
        graph.tensors[permutation].buffer = flatbuffer.add_constant(model, np.asarray(order, "<i4"))
        made[name] = _add_tensor(schema, graph, f"{name}/transposed", [source.shape[axis] for axis in order], source.type)
        operator = schema.OperatorT()
        operator.opcodeIndex = flatbuffer.op_code(model, "TRANSPOSE", 1)
        operator.inputs, operator.outputs = [tensor, permutation], [made[name]]
        operator.builtinOptionsType, operator.builtinOptions = schema.BuiltinOptions.TransposeOptions, schema.TransposeOptionsT()
        graph.operators.append(operator)
    graph.outputs = [*graph.outputs, *made.values()]
    return flatbuffer.dump(model), made


def run(data: bytes, inputs: Mapping[int, Array]) -> dict[int, Array]:
    """Outputs by tensor index for inputs by tensor index. Raises `ConversionError` when LiteRT refuses the file."""
    interpreter = require("ai_edge_litert.interpreter", extra="litert", purpose="running a .tflite file")
    try:
        with quiet():
            runner = interpreter.Interpreter(model_content=data, num_threads=1)
            runner.allocate_tensors()
            details = {d["index"]: d for d in runner.get_input_details()}
            for tensor, value in inputs.items():
                runner.set_tensor(tensor, value.astype(details[tensor]["dtype"]))
            runner.invoke()
            return {d["index"]: runner.get_tensor(d["index"]) for d in runner.get_output_details()}
    except (ValueError, RuntimeError) as error:
        raise ConversionError(f"the converted file does not run in LiteRT: {str(error).strip().splitlines()[0][:300]}") from error


def _decorated_inputs(data: bytes) -> dict[str, int]:
    graph = flatbuffer.schema().Model.GetRootAs(data, 0).Subgraphs(0)
    indices = [int(graph.Inputs(i)) for i in range(graph.InputsLength())]
    names = {i: graph.Tensors(i).Name().decode() for i in indices}
    return {name.removeprefix("serving_default_").removesuffix(":0"): index for index, name in names.items()}


def _add_tensor(schema: Any, graph: Any, name: str, shape: Sequence[int], kind: int) -> int:
    tensor = schema.TensorT()
    tensor.name, tensor.shape, tensor.type, tensor.buffer = name, list(shape), kind, 0
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def end_tensors(data: bytes, *, inputs: bool) -> tuple[dict[str, int], list[int]]:
    """Tensor indices of the main graph's inputs or outputs, by tensor name and in the file's order."""
    graph = flatbuffer.schema().Model.GetRootAs(data, 0).Subgraphs(0)
    length, item = (graph.InputsLength(), graph.Inputs) if inputs else (graph.OutputsLength(), graph.Outputs)
    order = [int(item(i)) for i in range(length)]
    return {graph.Tensors(index).Name().decode(): index for index in order}, order


def rename_tensors(data: bytes, names: Sequence[tuple[int, str]]) -> bytes:
    """Give tensors of the main graph other names; signatures are dropped, so that readers use these."""
    model = flatbuffer.load(data)
    for index, name in names:
        model.subgraphs[0].tensors[index].name = name
    model.signatureDefs = []
    return flatbuffer.dump(model)
