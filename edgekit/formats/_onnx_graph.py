"""Reading and correcting ONNX graphs: constants, shapes, custom operators, training mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgekit.errors import ConversionError
from edgekit.formats._source import DYNAMIC
from edgekit.tensors import DTYPES, Array

RUNTIME_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Operator sets that onnxruntime brings with it."""


def tensors(proto: Any) -> Iterator[Any]:
    """Every stored tensor: initializers and tensors of attributes, in bodies of control flow as well."""
    for graph in graphs(proto.graph):
        yield from graph.initializer
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors


def graphs(graph: Any) -> Iterator[Any]:
    """A graph and the bodies of its control flow."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)
            for body in attribute.graphs:
                yield from graphs(body)


def rename_values(graph: Any, names: Mapping[str, str]) -> None:
    """Give values the names that `names` has for them, in bodies of control flow as well."""
    for one in graphs(graph):
        for value in (*one.input, *one.output, *one.initializer, *one.value_info):
            value.name = names.get(value.name, value.name)
        for node in one.node:
            for values in (node.input, node.output):
                for index, name in enumerate(values):
                    values[index] = names.get(name, name)


def layer(node: Any) -> str:
    """A node's name, or the name of what it computes."""
    return str(node.name or next((name for name in node.output if name), node.op_type))


def value_shape(value: Any) -> tuple[int, ...] | None:
    """Sizes of a graph input or output, -1 for a dynamic one; None when even the rank is unknown."""
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else DYNAMIC for d in kind.shape.dim)


def element_type(value: Any) -> str | None:
    """The dtype of a graph input or output; None for anything but a numeric tensor."""
    import onnx

    if not value.type.HasField("tensor_type"):
        return None
    try:
        name = str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    except (KeyError, ValueError):
        return None
    return name if name in DTYPES else None


def constant(graph: Any, name: str) -> Array | None:
    """The value of an initializer or Constant node, None for anything computed."""
    import onnx

    for tensor in graph.initializer:
        if tensor.name == name:
            return onnx.numpy_helper.to_array(tensor)  # type: ignore[no-any-return]  # onnx is not typed here
    for node in graph.node:
        if name in node.output and node.op_type == "Constant":
            value = next((a for a in node.attribute if a.name == "value"), None)
            return None if value is None else onnx.numpy_helper.to_array(value.t)
        if name in node.output and node.op_type == "Identity":
            return constant(graph, node.input[0])
    return None


def refuse_custom(proto: Any, name: str) -> None:
    """Raise `ConversionError` for an operator of a domain that no runtime here knows."""
    for graph in graphs(proto.graph):
        for node in graph.node:
            if node.domain not in RUNTIME_DOMAINS:
                raise ConversionError(
                    f"{name}: custom operator {node.domain}::{node.op_type} in layer {layer(node)}",
                    "export the model without it, from standard ONNX operators",
                )


_OF_VALUES = ("NonZero", "NonMaxSuppression", "Unique", "Compress")
"""Operators whose result is as long as the values make it."""

_OF_SHAPES = ("Shape", "Size")

_SIZES = {
    "ConstantOfShape": (0,), "Expand": (1,), "Loop": (0, 1), "OneHot": (1,), "Pad": (1, 3), "Range": (0, 1, 2), "Reshape": (1,), "Resize": (2, 3),
    "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,), "TopK": (1,), "Unsqueeze": (1,), "Upsample": (1,), "CenterCropPad": (1,),
}  # fmt: skip
"""Inputs of an operator that decide the sizes of its results."""


def refuse_open_results(proto: Any, outputs: Sequence[str]) -> None:
    """Raise `ConversionError` where one of the `outputs`, whose sizes are unknown, comes from an operator whose result's size depends on values."""
    for output in outputs:
        for node in _behind(proto, [output]):
            if node.op_type in _OF_VALUES:
                what = f"the size of the output {output} depends on values: {node.op_type} in layer {layer(node)} decides it"
                raise ConversionError(what, "end the model before that operator and do its work in the app, on outputs of fixed size")


def sized_by_values(proto: Any, outputs: Sequence[str]) -> ConversionError | None:
    """What to say when the sizes of `outputs`, which are unknown, turn out to vary: the node that takes a size from what the model is given."""
    found = size_from_input(proto, outputs)
    if found is None:
        return None
    output, said, given = found
    hint = f"export the model with a constant there: {given} is only known when it runs"
    return ConversionError(f"the size of the output {output} depends on values: {said}", hint)


def size_from_input(proto: Any, outputs: Sequence[str]) -> tuple[str, str, str] | None:
    """The first of `outputs` behind a node that takes a size from the values of an input, that node in words, and the input; None where none is."""
    given = {value.name for value in proto.graph.input} - {tensor.name for tensor in proto.graph.initializer}
    for output in outputs:
        for node in _behind(proto, [output]):
            for name in (node.input[place] for place in _SIZES.get(node.op_type, ()) if place < len(node.input) and node.input[place]):
                read = {name, *(one for behind in _behind(proto, [name], past=_OF_SHAPES) for one in behind.input)}
                if read & given:
                    return output, f"{node.op_type} in layer {layer(node)} takes it from {name}", min(read & given)
    return None


def _behind(proto: Any, names: Sequence[str], past: Sequence[str] = ()) -> Iterator[Any]:
    """The nodes that values come from, nearest first; not those of the types `past`, nor what is behind them."""
    makers = {name: node for node in proto.graph.node for name in node.output}
    waiting, seen = list(names), set[str]()
    while waiting:
        node = makers.get(waiting.pop())
        if node is None or node.output[0] in seen or node.op_type in past:
            continue
        yield node
        seen.add(node.output[0])
        waiting += node.input


def switch_to_inference(proto: Any, name: str) -> tuple[str, ...]:
    """Turn Dropout that is active as in training into its inference form, in place; a notice for each.

    Raises `ConversionError` for BatchNormalization in training mode: exporting in that mode runs the model once and moves its running
    statistics, so what `model.eval()` computes is no longer in the file. Also for a Dropout whose mask is used, or that is switched at run time.
    """
    notices: list[str] = []
    used = {i for g in graphs(proto.graph) for node in g.node for i in node.input} | {v.name for g in graphs(proto.graph) for v in g.output}
    for graph in graphs(proto.graph):
        for node in graph.node:
            if node.op_type == "BatchNormalization" and _training_batch_norm(node, proto):
                what = f"{name}: exported in training mode: BatchNormalization in layer {layer(node)} uses the statistics of the batch"
                raise ConversionError(what, "export again after model.eval(): an export in training mode has already moved the stored statistics")
            if node.op_type == "Dropout" and _training_dropout(node, graph, proto, name):
                _refuse_mask(node, used, name)
                notices.append(f"layer {layer(node)}: Dropout was exported in training mode: switched off")
                node.op_type = "Identity"
                del node.input[1:], node.output[1:], node.attribute[:]
    return tuple(notices)


def _training_batch_norm(node: Any, proto: Any) -> bool:
    flags = {a.name: a.i for a in node.attribute}
    return bool(flags.get("training_mode", 0)) if _opset(proto) >= 14 else len([o for o in node.output if o]) > 1


def _training_dropout(node: Any, graph: Any, proto: Any, name: str) -> bool:
    if _opset(proto) < 12 or len(node.input) < 3 or not node.input[2]:
        return False
    flag = constant(graph, node.input[2])
    if flag is None:
        raise ConversionError(f"{name}: Dropout in layer {layer(node)} is switched by {node.input[2]} at run time", "export with model.eval()")
    return bool(flag)


def _refuse_mask(node: Any, used: set[str], name: str) -> None:
    wanted = [output for output in node.output[1:] if output in used]
    if wanted:
        what = f"{name}: exported in training mode: Dropout in layer {layer(node)} gives its mask to {wanted[0]}"
        raise ConversionError(what, "export again after model.eval()")


def _opset(proto: Any) -> int:
    return next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)


def name_all_axes(proto: Any) -> None:
    """Leave out the empty list of axes that stands for all of them: shape inference takes it for none."""
    empty = {tensor.name for tensor in proto.graph.initializer if list(tensor.dims) == [0]}
    for node in proto.graph.node:
        idle = any(attribute.name == "noop_with_empty_axes" and attribute.i for attribute in node.attribute)
        if node.op_type.startswith("Reduce") and len(node.input) > 1 and node.input[1] in empty and not idle:
            del node.input[1:]


def sort_nodes(graph: Any) -> None:
    """Put nodes behind those that they read, as the standard asks: some quantizers append theirs at the end. A cycle is left to the checker."""
    made, placed, order = {name for node in graph.node for name in node.output}, set[str](), list[Any]()
    waiting = list(graph.node)
    while waiting:
        later = []
        for node in waiting:
            if all(name in placed or name not in made for name in _read(node)):
                order.append(node)
                placed |= set(node.output)
            else:
                later.append(node)
        if len(later) == len(waiting):
            return
        waiting = later
    if any(one is not other for one, other in zip(order, graph.node, strict=True)):
        copies = [type(node).FromString(node.SerializeToString()) for node in order]
        del graph.node[:]
        graph.node.extend(copies)


def _read(node: Any) -> set[str]:
    """What a node reads, in its subgraphs too."""
    inner = [one for attribute in node.attribute for graph in (attribute.g, *attribute.graphs) for one in graph.node]
    return {*node.input, *(name for one in inner for name in _read(one))} - {name for one in inner for name in one.output}
