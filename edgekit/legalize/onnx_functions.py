"""Operators that a target refuses, written out as ONNX's own standard defines them in other operators."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from edgekit import opset
from edgekit.errors import ConversionError
from edgekit.formats import Model, _onnx_view
from edgekit.legalize import onnx_prepare

ROUNDS = 4
"""A definition may use operators that have a definition themselves: losses go through two."""


def written_out(model: Model, delegate: str, left_alone: Collection[str] = ()) -> tuple[Model, tuple[str, ...]]:
    """The model with the definitions of what `delegate` refuses in its place, and a sentence for each type of operator."""
    count: Counter[str] = Counter()
    for _ in range(ROUNDS):
        proto, done = _once(model.handle, delegate, left_alone)
        if not done:
            break
        count += done
        model = dataclasses.replace(model, handle=proto)
    return model, tuple(
        f"{kind}: {number} x written out as the standard defines it: the target has no {kind} of this form" for kind, number in count.items()
    )


def _once(proto: Any, delegate: str, left_alone: Collection[str]) -> tuple[Any, Counter[str]]:
    import onnx.inliner

    verdicts = opset.judge(_onnx_view.graph(proto, 0), delegate)
    refused = {(verdict.type, verdict.name) for verdict in verdicts if verdict.status != "accelerated" and verdict.type not in left_alone}
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    types, done = _types(made), Counter[str]()
    for node in made.graph.node:
        name = node.name or next((name for name in node.output if name), "")
        found = definition(node, types, made) if (node.op_type, name) in refused else None
        if found is None:
            continue
        done[node.op_type] += 1
        found.name, found.domain = f"{node.op_type}_{sum(done.values())}", "edgekit"
        made.functions.append(found)
        node.op_type, node.domain = found.name, found.domain
    if not done:
        return proto, done
    made.opset_import.append(onnx.helper.make_opsetid("edgekit", 1))
    made.ir_version = max(made.ir_version, 8)  # from which on a model may hold functions
    try:
        return onnx_prepare.simplified(_cleaned(onnx.inliner.inline_local_functions(made))), done
    except (ConversionError, RuntimeError, ValueError):  # a form that the definition was not written for: the operator stays
        return proto, Counter()


def definition(node: Any, types: Mapping[str, Any], proto: Any) -> Any:
    """A `FunctionProto` that computes what `node` does, in the model's operator set; None where the standard has none
    without a loop. Fills in the node's defaults.
    """
    import onnx

    version = next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    if node.domain not in ("", "ai.onnx"):
        return None
    schema = onnx.defs.get_schema(node.op_type, version, "")
    given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
    made = onnx.FunctionProto()
    if schema.context_dependent_function_opset_versions:
        best = _best(schema.context_dependent_function_opset_versions, version)
        made.ParseFromString(schema.get_context_dependent_function_with_opset_version(best, node.SerializeToString(), given))
    elif schema.function_opset_versions:
        made.ParseFromString(schema.get_function_with_opset_version(_best(schema.function_opset_versions, version)))
    else:
        return None
    if any(inner.op_type in ("Loop", "Scan") for inner in made.node):
        return None
    present = {attribute.name for attribute in node.attribute}
    defaults = (a.default_value for name, a in schema.attributes.items() if name not in present)
    node.attribute.extend(value for value in defaults if value.name)
    for imported in made.opset_import:
        imported.version = version
    return made


def _best(versions: Sequence[int], version: int) -> int:
    return max((v for v in versions if v <= version), default=min(versions))


def _types(proto: Any) -> dict[str, Any]:
    import onnx

    graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    constants = {t.name: onnx.helper.make_tensor_type_proto(t.data_type, t.dims) for t in graph.initializer}
    return constants | {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}


def _cleaned(proto: Any) -> Any:
    kept = [o for o in proto.opset_import if o.domain != "edgekit"]
    copies = [type(o).FromString(o.SerializeToString()) for o in kept]
    del proto.opset_import[:], proto.functions[:]
    proto.opset_import.extend(copies)
    return proto
