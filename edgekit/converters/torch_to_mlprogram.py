"""PyTorch -> Core ML's ML Program, with coremltools."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

from edgekit.converters import _mlprogram_result
from edgekit.converters.torch_to_litert import check_operators, example_tensors, flat_module
from edgekit.errors import ConversionError
from edgekit.formats import Model, mlprogram_write
from edgekit.formats._quiet import quiet
from edgekit.formats._torch_program import layer_of, operator_name
from edgekit.legalize import torch_coreml, torch_ops

SOURCE = "torch"
RESULT = "mlprogram"

TAKEN_APART = frozenset(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "rnn_tanh", "rnn_relu", "unsafe_split"))

WHOLE = frozenset(("lstm", "gru"))

HINT = "express it with other operators, or keep it outside the model"


def convert(model: Model, workdir: Path) -> Model:
    """Convert an exported program. Raises `ConversionError` naming the operator and layer that coremltools has no translation for."""
    check_operators(model.handle)
    mlprogram_write.coremltools()
    _teach()
    try:
        with quiet():
            converted, notices = _exported(model)
    except Exception as first:  # coremltools raises what its parts raise
        try:
            with quiet():
                converted, notices = _traced(model), ()  # recurrent layers come whole out of a trace, and in pieces out of an export
        except Exception:  # the first reason is the one that names the model's own operators
            raise ConversionError(f"{model.name}: {_blame(model, first)}", HINT) from first
    return _mlprogram_result.result(model, converted, workdir, notices)


def _teach() -> None:
    """Tell coremltools of what ML Programs have and it does not know of PyTorch: what is scattered, summed, multiplied, or compared."""
    from coremltools.converters.mil import Builder
    from coremltools.converters.mil.frontend.torch import ops
    from coremltools.converters.mil.frontend.torch.torch_op_registry import _TORCH_OPS_REGISTRY

    def scatter_reduce(context: Any, node: Any) -> None:
        data, axis, index, src, reduce = ops._get_inputs(context, node)[:5]
        mode = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}[getattr(reduce, "val", reduce)]
        where = {"data": data, "indices": index, "updates": src, "axis": getattr(axis, "val", axis)}
        context.add(Builder.scatter_along_axis(**where, mode=mode, name=node.name))

    if _TORCH_OPS_REGISTRY.get_func("scatter_reduce") is None:
        _TORCH_OPS_REGISTRY.register_func(scatter_reduce, torch_alias=["scatter_reduce.two"])


def _exported(model: Model) -> tuple[Any, tuple[str, ...]]:
    import torch

    ct = mlprogram_write.coremltools()
    program = model.handle
    ends = (*program.graph_signature.input_specs, *program.graph_signature.output_specs)
    module, notices = torch_ops.legalize(program, torch_coreml.RULES)
    if notices or any(hasattr(end.arg, "value") for end in ends):  # coremltools takes tensors only, nested or not
        program = torch.export.export(flat_module(program, module), example_tensors(model))
    program = program.run_decompositions(_taken_apart())
    _name_by_layer(program)
    _divide(program)
    _say_by_place(program)
    outputs = [ct.TensorType(name=f"edgekit_output_{i}") for i in range(len(model.signature.outputs))]
    return ct.convert(program, outputs=outputs, **_mlprogram_result.settings()), notices


def _taken_apart() -> dict[Any, Any]:
    """PyTorch's own decompositions of the operators that coremltools does not know, or not out of an export (LSTM and GRU it knows whole, from a
    trace).
    """
    import torch
    from torch._decomp import decomposition_table

    known = {**decomposition_table, **torch.export.default_decompositions()}
    return {operator: known[operator] for operator in known if _operator_of(operator) in TAKEN_APART or not _is_taken(operator)}


def _is_taken(target: Any) -> bool:
    """Whether coremltools translates an operator of PyTorch, out of an export or out of a trace."""
    from coremltools.converters.mil.frontend.torch.torch_op_registry import _TORCH_OPS_REGISTRY

    return not hasattr(target, "_schema") or _operator_of(target) in WHOLE or _TORCH_OPS_REGISTRY.get_func(target.__name__) is not None


def _operator_of(target: Any) -> str:
    """`lstm_cell` for an overload of it, else empty."""
    return target._schema.name.partition("::")[2] if hasattr(target, "_schema") else ""


def _traced(model: Model) -> Any:
    import numpy as np
    import torch

    ct = mlprogram_write.coremltools()
    examples = example_tensors(model)
    script = torch.jit.trace(flat_module(model.handle, model.handle.module()), examples)
    kinds = [np.float32 if example.is_floating_point() else np.int32 for example in examples]
    inputs = [ct.TensorType(f"edgekit_input_{i}", shape=tuple(x.shape), dtype=kinds[i]) for i, x in enumerate(examples)]
    outputs = [ct.TensorType(name=f"edgekit_output_{i}") for i in range(len(model.signature.outputs))]
    return ct.convert(script, inputs=inputs, outputs=outputs, **_mlprogram_result.settings())


def _name_by_layer(program: Any) -> None:
    """Name the nodes by the layers they come from: coremltools takes its operators' names from them."""
    signature = program.graph_signature
    ends = {spec.arg.name for spec in (*signature.input_specs, *signature.output_specs) if hasattr(spec.arg, "name")}
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    called: dict[Any, str] = {}
    for node in program.graph.nodes:
        layer = layer_of(node)
        if layer in (node.name, ""):  # scripts and modules exported again tell no layers, but whose weights a node reads
            layer = next((stored[read.name].removeprefix("model.").rpartition(".")[0] for read in node.all_input_nodes if read.name in stored), "")
        if node.op == "call_function" and node.name not in ends and layer:
            before = called.get(node.all_input_nodes[0]) if _is_folded(node) else None
            called[node] = before or mlprogram_write.identifier(layer)
            node._rename(f"{called[node]}_alone" if any(map(_is_folded, node.users)) else called[node])


def _is_folded(node: Any) -> bool:
    """Whether a batch normalization will become part of the convolution before it: what both become is called as the convolution."""
    if "batch_norm" not in _operator_of(node.target):
        return False
    read = node.all_input_nodes[0]
    return read.op == "call_function" and _operator_of(read.target).startswith("conv") and len(read.users) == 1


def _divide(program: Any) -> None:
    """Write 1 / x as a division: coremltools would make it an `inverse` of x + 1e-4."""
    import torch

    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.reciprocal.default:
            node.target, node.args = torch.ops.aten.div.Tensor, (1.0, *node.args)


def _say_by_place(program: Any) -> None:
    """Give GELU its approximation by place: coremltools does not see it by its name, and computes another function. Sums and differences of
    multiples it computes without the factor. Raises `ConversionError` for one that PyTorch's decompositions have left.
    """
    import torch

    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.gelu.default and node.kwargs:
            node.args, node.kwargs = (*node.args, node.kwargs["approximate"]), {}
        if node.op == "call_function" and node.kwargs.get("alpha", 1) != 1 and _operator_of(node.target) in ("add", "sub", "rsub"):
            raise ConversionError(f"{operator_name(node)} in layer {layer_of(node)} adds a multiple, which coremltools does not", HINT)


def _blame(model: Model, error: Exception) -> str:
    said = mlprogram_write.first_line(error)
    wanted = re.search(r"op '?(\w+)'? not implemented|Unsupported fx node (\w+)", str(error))
    name = next((part for part in wanted.groups() if part), "") if wanted else ""
    for node in model.handle.graph.nodes:
        if name and operator_name(node).partition("::")[2].partition(".")[0].rstrip("_") == name.rstrip("_"):
            return f"{operator_name(node)} in layer {layer_of(node)} has no counterpart in Core ML"
    for node in model.handle.graph.nodes:  # PyTorch took it apart, and a part has none
        if node.op == "call_function" and not _is_taken(node.target):
            return f"{operator_name(node)} in layer {layer_of(node)} has no counterpart in Core ML ({said})"
    at = [frame.f_locals.get("node") for frame, _ in traceback.walk_tb(error.__traceback__)]
    failed = next((node for node in reversed(at) if hasattr(node, "kind") and hasattr(node, "name")), None)
    if failed is not None:
        return f"coremltools failed at {failed.kind} in layer {failed.name}: {said}"
    return f"coremltools failed: {said}"
