"""PyTorch -> LiteRT, with litert-torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from edgekit.converters import _litert_result, _tflite_edges
from edgekit.errors import ConversionError, MissingPackageError, require
from edgekit.formats import Model, tflite_flatbuffer
from edgekit.formats._quiet import quiet
from edgekit.formats._torch_program import flat_outputs, is_flat, layer_of, leaves, operator_name
from edgekit.legalize import torch_ops

SOURCE = "torch"
RESULT = "tflite"

_KNOWN_NAMESPACES = ("aten", "prims", "prim", "quantized_decomposed", "higher_order")


def convert(model: Model, workdir: Path) -> Model:
    """Convert an exported program. Raises `ConversionError` naming the operator and layer that cannot be converted."""
    check_operators(model.handle)
    compiled, notices = _compiled(model, example_tensors(model))
    data = _named(model, _tflite_edges.name_by_layer(compiled))
    return _litert_result.result(model, tflite_flatbuffer.write(workdir / f"{model.name}.tflite", data), notices)


def _compiled(model: Model, flat: tuple[Any, ...]) -> tuple[bytes, tuple[str, ...]]:
    """The compiler's bytes, and what was rewritten before: the program as it is where that will do, else a module that is exported again."""
    import torch

    double = torch_ops.computes_double(model.handle)
    if is_flat(model.handle) and not double and not torch_ops.applies(model.handle):
        return _compile(model, torch.nn.Identity().eval(), flat, model.handle), ()
    module, notices = torch_ops.legalize(model.handle)
    if double:
        module, flat = torch_ops.single(module), tuple(tensor.float() if tensor.dtype == torch.float64 else tensor for tensor in flat)
        notices = (*notices, "the model computes in float64: float32 here")
    wrapper = flat_module(model.handle, module)
    if notices and not double:
        _check_equal(model, flat_module(model.handle, model.handle.module()), wrapper, flat)
    return _compile(model, wrapper, flat), notices


def check_operators(program: Any) -> None:
    """Raise `ConversionError` for operators outside PyTorch's own set and for control flow that was not resolved."""
    for node in program.graph.nodes:
        name = operator_name(node)
        if name and name.partition("::")[0] not in _KNOWN_NAMESPACES:
            what = f"layer {layer_of(node)}: custom operator {name} has no counterpart in LiteRT"
            raise ConversionError(what, "express it with PyTorch's own operators")
        control = node.op == "call_function" and getattr(node.target, "namespace", "") == "higher_order"
        if control and "wrap" not in node.target.name():
            what = f"layer {layer_of(node)}: control flow ({node.target.name()}) that depends on values"
            raise ConversionError(what, "resolve the branch before exporting")


def example_tensors(model: Model) -> tuple[Any, ...]:
    """Inputs to trace and check with: the model's own examples, else seeded normal values (zeros for integers)."""
    import numpy as np
    import torch

    rng = np.random.RandomState(0)
    made = []
    for spec in model.signature.inputs:
        given = None if model.examples is None else model.examples.get(spec.name)
        drawn = rng.standard_normal(spec.shape) if spec.dtype.startswith("float") else np.zeros(spec.shape)
        made.append(torch.from_numpy(np.array(drawn.astype(spec.dtype) if given is None or not given.any() else given)))
    return tuple(made)


def flat_module(program: Any, module: Any) -> Any:
    """A `torch.nn.Module` from the flat tensor inputs to the tuple of tensor outputs, in the signature's order."""
    import torch

    class Flat(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, *flat: Any) -> Any:
            # node by node, so that each operator of the result keeps the name of the layer that it comes from
            with torch.fx.traceback.preserve_node_meta():
                results = torch.fx.Interpreter(self.model).run(*leaves(program, flat), enable_io_processing=False)
            return tuple(flat_outputs(results))

    for node in module.graph.nodes:
        node.meta["nn_module_stack"] = {node.name: ("", layer_of(node))}
    wrapper = Flat()
    wrapper.training = False  # exported graphs refuse eval(), and have no training mode
    return wrapper


def _compile(model: Model, wrapper: Any, flat: tuple[Any, ...], exported: Any = None) -> bytes:
    try:
        return _litert_bytes(wrapper, flat, exported)
    except MissingPackageError:
        raise
    except Exception as error:  # the compiler raises what its passes raise
        hint = "replace it with operators that LiteRT has, or keep it outside the model"
        raise ConversionError(f"{model.name}: {_blame(model, error)}", hint) from error


def _litert_bytes(wrapper: Any, flat: tuple[Any, ...], exported: Any = None) -> bytes:
    import torch

    with quiet():
        litert_torch = require("litert_torch", extra="torch", purpose="converting PyTorch to LiteRT")
        if exported is None:
            return bytes(litert_torch.convert(wrapper, flat).model_content())
        # litert-torch takes modules only, and would export again what is exported already
        with _named_by_layer(exported), mock.patch.object(torch.export, "export", lambda *_args, **_options: exported):
            return bytes(litert_torch.convert(wrapper, flat).model_content())


@contextlib.contextmanager
def _named_by_layer(program: Any) -> Iterator[None]:
    """The program's nodes with their layer's path in the place where the compiler looks for names."""
    before = [(node, node.meta.get("nn_module_stack")) for node in program.graph.nodes]
    for node, _ in before:
        node.meta["nn_module_stack"] = {node.name: ("", layer_of(node))}
    try:
        yield
    finally:
        for node, stack in before:
            node.meta["nn_module_stack"] = stack or {}


def _named(model: Model, data: bytes) -> bytes:
    """litert-torch names flat arguments `args_0`, ... and results `output_0`, ... in order."""
    inputs, outputs = _tflite_edges.signature_tensors(data)
    return _tflite_edges.rename(
        data,
        [(inputs[f"args_{i}"], spec.name) for i, spec in enumerate(model.signature.inputs)],
        [(outputs[f"output_{i}"], spec.name) for i, spec in enumerate(model.signature.outputs)],
    )


def _check_equal(model: Model, original: Any, rewritten: Any, flat: tuple[Any, ...]) -> None:
    import torch

    with torch.no_grad():
        for spec, right, got in zip(model.signature.outputs, original(*flat), rewritten(*flat), strict=True):
            if not torch.allclose(right, got, rtol=1e-4, atol=1e-5 * max(1.0, float(right.abs().max()))):
                worst = float((right - got).abs().max())
                raise ConversionError(f"{model.name}: a rewrite changed {spec.name} by {worst:.3g}", "this is a fault of edgekit: report it")


def _blame(model: Model, error: Exception) -> str:
    """Name the operator that does not convert: every kind of call is tried alone."""
    tried: set[str] = set()
    for node in torch_ops.legalize(model.handle)[0].graph.nodes:
        kind = f"{node.target}{[_shape_or_value(a) for a in node.args]}"
        if operator_name(node) and kind not in tried:
            tried.add(kind)
            if _fails_alone(node):
                return f"{operator_name(node)} in layer {layer_of(node)} has no counterpart in LiteRT ({_arguments(node)})"
    return f"litert-torch failed: {(str(error).strip() or type(error).__name__).splitlines()[0][:200]}"


def _fails_alone(node: Any) -> bool:
    import torch

    tensors = [a for a in node.all_input_nodes if hasattr(a.meta.get("val"), "dtype")]

    class Alone(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
        def forward(self, *values: Any) -> Any:
            known = dict(zip(tensors, values, strict=True))
            args = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: known[n])
            return tuple(flat_outputs(node.target(*args[0], **args[1])))

    try:
        flat = tuple(torch.ones(a.meta["val"].shape, dtype=a.meta["val"].dtype) for a in tensors)
        if not flat:
            return False
        _litert_bytes(Alone().eval(), flat)
    except Exception:  # any failure is the answer
        return True
    return False


def _shape_or_value(argument: Any) -> Any:
    value = getattr(argument, "meta", {}).get("val", argument)
    return tuple(value.shape) if hasattr(value, "shape") else value


def _arguments(node: Any) -> str:
    names = [argument.name for argument in node.target._schema.arguments]
    shown: Sequence[str] = [f"{n}={_shape_or_value(a)}" for n, a in zip(names, node.args, strict=False)]
    return ", ".join(shown)[:200]
