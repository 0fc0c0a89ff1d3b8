"""Reading `torch.export.ExportedProgram`s: inputs, outputs, layers, training mode."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from edgekit.errors import ConversionError
from edgekit.formats._quiet import quiet
from edgekit.formats._source import DYNAMIC, image_layout
from edgekit.tensors import TensorSpec

_BATCH_NORM_TRAINING = {"aten::batch_norm": 5, "aten::native_batch_norm": 5, "aten::_native_batch_norm_legit": 5, "aten::cudnn_batch_norm": 5}
_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout")
_DROPOUT_TRAINING = dict.fromkeys((f"aten::{kind}" for kind in _DROPOUTS), 2)


def export(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """`torch.export.export` with static shapes. Raises `ConversionError` naming the source line that cannot be exported."""
    import torch

    try:
        with torch.no_grad(), quiet():
            try:
                return torch.export.export(module, args, kwargs)
            except Exception:
                if not _registered(module, args, kwargs):
                    raise
                return torch.export.export(module, args, kwargs)
    except Exception as error:  # torch raises dozens of types here
        hint = "make the shape or branch independent of the values, or export it yourself to .pt2"
        raise ConversionError(f"{name}: {_reason(error)}", hint) from error


def _registered(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Let a data class that forward returns through, so that its fields name the outputs; whether it returns one that was not known."""
    import torch
    import torch.utils._pytree as pytree

    kind = type(module(*args, **kwargs))
    if not dataclasses.is_dataclass(kind) or kind in pytree.SUPPORTED_NODES:
        return False
    torch.export.register_dataclass(kind)
    return True


def input_specs(program: Any) -> tuple[TensorSpec, ...]:
    """The tensor inputs in order; a dynamic size is -1."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    names = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    return tuple(_spec(name, values[name]) for name in names if hasattr(values[name], "dtype"))


def output_specs(program: Any) -> tuple[TensorSpec, ...]:
    """The tensor outputs in order, named by dict key or field, else `output_0`, `output_1`, ... Raises `ConversionError` where there is none."""
    output = next(node for node in program.graph.nodes if node.op == "output")
    count = len(program.graph_signature.user_outputs)
    values = [getattr(node, "meta", {}).get("val") for node in output.args[0]][-count:]
    names = _output_names(program.call_spec.out_spec, count)
    specs = [_spec(name, value) for name, value in zip(names, values, strict=True) if hasattr(value, "dtype")]
    if not specs:
        raise ConversionError("the model returns no tensor", "return a tensor, or a tuple or dict of tensors, from forward")
    return tuple(specs)


def unflatten(program: Any, flat: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of the program from its flat tensor inputs; the constants it was exported with are filled in."""
    import torch.utils._pytree as pytree

    args, kwargs = pytree.tree_unflatten(leaves(program, flat), program.call_spec.in_spec)
    return args, kwargs


def is_flat(program: Any) -> bool:
    """Whether the program takes tensors one by one, by position, and gives one tensor or a flat sequence of them."""
    args, kwargs = program.call_spec.in_spec.children()
    results = program.call_spec.out_spec
    plain = all(child.is_leaf() for child in args.children()) and not kwargs.num_leaves
    constant = any(hasattr(spec.arg, "value") for spec in (*program.graph_signature.input_specs, *program.graph_signature.output_specs))
    return plain and not constant and (results.is_leaf() or (results.type in (tuple, list) and all(child.is_leaf() for child in results.children())))


def leaves(program: Any, flat: Sequence[Any]) -> list[Any]:
    """What the program's graph takes, in order: the flat tensor inputs, with the constants it was exported with between them."""
    tensors = iter(flat)
    constants = {spec.arg.name: spec.arg.value for spec in program.graph_signature.input_specs if hasattr(spec.arg, "value")}
    return [constants[name] if name in constants else next(tensors) for name in _leaf_names(program)]


def flat_tensors(tree: Any) -> list[Any]:
    """The tensors of nested arguments or results, in order."""
    import torch
    import torch.utils._pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


flat_outputs = flat_tensors


def digest_of_program(program: Any) -> str:
    """SHA-256 (hex) of the graph and its weights."""
    import torch

    total = hashlib.sha256(program.graph_module.code.encode())
    stored = {**program.state_dict, **{k: v for k, v in program.constants.items() if isinstance(v, torch.Tensor)}}
    for name in sorted(stored):
        tensor = stored[name].detach().contiguous().reshape(-1)
        total.update(f"{name} {tensor.dtype}\0".encode() + tensor.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def layer_of(node: Any) -> str:
    """The module path of a graph node (`features.3.conv`), or the node's own name."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(path).removeprefix("L__self__").strip(".") for path, _ in stack.values()]
    return next((path for path in reversed(paths) if path), node.name)


def operator_name(node: Any) -> str:
    """`aten::conv2d` for a call of an operator, else empty."""
    target = node.target
    return target._schema.name if node.op == "call_function" and hasattr(target, "_schema") else ""


def check_inference_mode(program: Any) -> None:
    """Raise `ConversionError` when batch statistics or dropout are active in the graph."""
    for node in program.graph.nodes:
        name = operator_name(node)
        batch = _flag(node, _BATCH_NORM_TRAINING.get(name)) and node.args[3] is not None
        if batch or _flag(node, _DROPOUT_TRAINING.get(name)):
            raise ConversionError(
                f"exported in training mode: {name} in layer {layer_of(node)} is active as in training",
                "call model.eval() before exporting; functional calls need training=self.training",
            )


def check_computable(program: Any) -> None:
    """Raise `ConversionError` for state that the model keeps between calls, and for types that no runtime computes in."""
    import torch

    for node in program.graph.nodes:
        if getattr(node.meta.get("val"), "dtype", None) == torch.bfloat16:
            hint = "convert the model and its inputs with .float(), and take casts to bfloat16 out of forward"
            raise ConversionError(f"layer {layer_of(node)}: {node.name} is bfloat16, which no runtime here computes in", hint)
    for state in _changed_buffers(program):
        hint = "make it an input and an output of forward, so that the app carries it from call to call"
        raise ConversionError(f"the model keeps state between calls: the buffer {state} changes in every run, and outputs depend on it", hint)


def _changed_buffers(program: Any) -> Iterator[str]:
    """Buffers that a run changes and that reach an output of the model."""
    buffers = program.graph_signature.inputs_to_buffers
    written = {node.args[0].name for node in program.graph.nodes if _writes(node) and getattr(node.args[0], "op", "") == "placeholder"}
    changed = {name for name, buffer in buffers.items() if name in written or buffer in program.graph_signature.buffers_to_mutate.values()}
    results = next(node for node in program.graph.nodes if node.op == "output").args[0][-len(program.graph_signature.user_outputs) :]
    reached, todo = set[str](), [node for node in results if hasattr(node, "all_input_nodes")] if changed else []
    while todo:
        node = todo.pop()
        if node.name not in reached:
            reached.add(node.name)
            todo += node.all_input_nodes
    yield from (buffers[name] for name in sorted(changed & reached))


def _writes(node: Any) -> bool:
    return bool(operator_name(node)) and node.target._schema.is_mutable and bool(node.args)


def _flag(node: Any, position: int | None) -> bool:
    return position is not None and len(node.args) > position and node.args[position] is True


def _leaf_names(program: Any) -> list[str]:
    return [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]


def _spec(name: str, value: Any) -> TensorSpec:
    shape = tuple(size if isinstance(size, int) else DYNAMIC for size in value.shape)
    dtype = str(value.dtype).removeprefix("torch.")
    return TensorSpec(name, shape, dtype, layout=image_layout(shape, dtype, "NCHW"))


def _output_names(out_spec: Any, count: int) -> list[str]:
    import torch.utils._pytree as pytree

    tree = pytree.tree_unflatten(list(range(count)), out_spec)
    paths = [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]
    names = [_path_name(path) for path in paths]
    return names if len(set(names)) == len(names) else [f"output_{i}" for i in range(count)]


def _path_name(path: Sequence[Any]) -> str:
    parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    if not parts or hasattr(path[0], "idx"):
        return "output_" + ("_".join(parts) or "0")
    return "_".join(parts)


def _reason(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    user = [m for m in re.findall(r'File "([^"]+)", line (\d+), in (\w+)', text) if "/torch/" not in m[0]]
    where = f" at {user[-1][0].rsplit('/', 1)[-1]}:{user[-1][1]} ({user[-1][2]})" if user else ""
    if "data-dependent" in text:
        return f"control flow or a shape depends on the values of a tensor{where}: {text.splitlines()[0][:160]}"
    return f"cannot be exported{where}: {text.splitlines()[0][:200]}"
