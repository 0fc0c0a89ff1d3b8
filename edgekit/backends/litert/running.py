"""Running a `.tflite` in the stock interpreter, with every intermediate tensor readable where that is asked for."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

from edgekit.backends.litert import signatures
from edgekit.errors import ConversionError, require
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.tensors import Array, Arrays, Signature, TensorSpec

THREADS = 2


class Interpreter:
    """A model in the stock interpreter (XNNPACK where it applies). Inputs and outputs are in stored types, by `signature`'s names.

    `keep_all` keeps every tensor of the last run readable through `tensor`: memory of all activations of one input set, no more.
    """

    def __init__(
        self, content: bytes, signature: Signature, *, keep_all: bool = False, edges: tuple[Sequence[int], Sequence[int]] | None = None
    ) -> None:
        runtime = require("ai_edge_litert.interpreter", extra="litert", purpose="running .tflite files")
        self.signature = signature
        self._inputs, self._outputs = edges or signatures.edges(flatbuffer.load(content), signature)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # keeping tensors warns that it is for debugging: it is what taps are
            try:
                self._runtime = runtime.Interpreter(model_content=content, num_threads=THREADS, experimental_preserve_all_tensors=keep_all)
                self._runtime.allocate_tensors()
            except (RuntimeError, ValueError) as error:
                raise ConversionError(f"the LiteRT interpreter refuses the model: {_first_line(error)}") from error

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Outputs by name, in the signature's order. State of earlier runs is cleared first."""
        import numpy as np

        self._fit_shapes(inputs)
        self._runtime.reset_all_variables()
        details = {detail["index"]: detail for detail in self._runtime.get_input_details()}
        for spec, index in zip(self.signature.inputs, self._inputs, strict=True):
            self._runtime.set_tensor(index, np.asarray(inputs[spec.name], details[index]["dtype"], order="C"))
        try:
            self._runtime.invoke()
        except (RuntimeError, ValueError) as error:
            raise ConversionError(f"the LiteRT interpreter fails on the model: {_first_line(error)}") from error
        return {spec.name: self._runtime.get_tensor(index) for spec, index in zip(self.signature.outputs, self._outputs, strict=True)}

    def tensor(self, index: int) -> Array | None:
        """A tensor of the main graph as the last run left it; None where the runtime cannot give it."""
        try:
            return self._runtime.get_tensor(index)  # type: ignore[no-any-return]  # the runtime is untyped
        except ValueError:
            return None

    def _fit_shapes(self, inputs: Arrays) -> None:
        details = {detail["index"]: detail for detail in self._runtime.get_input_details()}
        pairs = [(index, inputs[spec.name]) for spec, index in zip(self.signature.inputs, self._inputs, strict=True)]
        changed = [(index, array) for index, array in pairs if tuple(details[index]["shape"]) != array.shape]
        for index, array in changed:
            self._runtime.resize_tensor_input(index, array.shape)
        if changed:
            try:
                self._runtime.allocate_tensors()
            except RuntimeError as error:
                shapes = [array.shape for _, array in changed]
                raise ConversionError(f"the model does not take inputs of shape {shapes}: {_first_line(error)}") from error


class Taps:
    """Some tensors of the main graph for one input set after another. Only the operators up to the last of them are run, and nothing
    is kept between runs, so memory is that of the runtime's own arena.
    """

    def __init__(self, model: Any, signature: Signature, tensors: Sequence[int]) -> None:
        self._tensors = list(dict.fromkeys(tensors))
        inputs, _ = signatures.edges(model, signature)
        operators = model.subgraphs[0].operators
        end = 1 + max((n for n, op in enumerate(operators) if {int(i) for i in op.outputs} & set(tensors)), default=-1)
        named = Signature(signature.inputs, tuple(TensorSpec(str(index), (), "float32") for index in self._tensors))
        self._session = Interpreter(cut(model, 0, end, inputs, self._tensors), named, edges=(inputs, self._tensors))

    def run(self, inputs: Arrays) -> dict[int, Array]:
        """The tensors by their index."""
        return {int(name): array for name, array in self._session.run(inputs).items()}


def cut(model: Any, start: int, end: int, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
    """The main graph's operators from `start` to `end` (exclusive) as a model of its own, with the constants that they read; tensor
    indices stay what they are. Models with further graphs keep them all.
    """
    made, graph = flatbuffer.schema(), model.subgraphs[0]
    operators = graph.operators[start:end]
    needed = {int(i) for op in operators for i in (*op.inputs, *op.outputs)}
    whole, part = made.ModelT(), made.SubGraphT()
    part.tensors = [tensor if index in needed else made.TensorT() for index, tensor in enumerate(graph.tensors)]
    part.operators, part.inputs, part.outputs = operators, list(inputs), list(outputs)
    whole.version, whole.operatorCodes, whole.buffers = model.version, model.operatorCodes, model.buffers
    whole.subgraphs = [part, *model.subgraphs[1:]]
    whole.subgraphs = [_with_tensors(g, [copy.copy(tensor) for tensor in g.tensors]) for g in whole.subgraphs]
    flatbuffer.merge_buffers(whole)
    return flatbuffer.dump(whole)


def _with_tensors(graph: Any, tensors: list[Any]) -> Any:
    changed = copy.copy(graph)
    changed.tensors = tensors
    return changed


def activations(model: Any) -> list[int]:
    """Indices of the float32 tensors of the main graph that are computed or fed, not stored."""
    float32 = flatbuffer.schema().TensorType.FLOAT32
    graph = model.subgraphs[0]
    made = {int(i) for op in graph.operators for i in op.outputs} | {int(i) for i in graph.inputs}
    return sorted(i for i in made if i >= 0 and graph.tensors[i].type == float32)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
