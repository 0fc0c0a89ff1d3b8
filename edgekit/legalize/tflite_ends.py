"""Float edges of an integer `.tflite`: the integers behind them are what crosses, and whoever calls it scales."""

from __future__ import annotations

from typing import Any

from edgekit.formats import tflite_flatbuffer as flatbuffer


def bare(model: Any) -> tuple[str, ...]:
    """Leave QUANTIZE of a float input and DEQUANTIZE to a float output off the main graph of a parsed model; the names of those edges."""
    graph, changed = model.subgraphs[0], []
    for operator in list(graph.operators):
        kind = flatbuffer.op_name(model, operator)
        if kind not in ("QUANTIZE", "DEQUANTIZE"):
            continue
        given, made = int(operator.inputs[0]), int(operator.outputs[0])
        if kind == "QUANTIZE" and _is_edge(graph, given, made, graph.inputs, "inputs"):
            changed.append(_move(model, graph, operator, "inputs", given, made))
        elif kind == "DEQUANTIZE" and _is_edge(graph, made, given, graph.outputs, "outputs"):
            changed.append(_move(model, graph, operator, "outputs", made, given))
    return tuple(changed)


def _is_edge(graph: Any, edge: int, inner: int, edges: Any, side: str) -> bool:
    """Whether `edge` is a float tensor of that side which meets the operator alone, and `inner` scaled integers that are no edge themselves."""
    types = flatbuffer.schema().TensorType
    taken = [int(i) for i in (*graph.inputs, *graph.outputs)]
    users = [int(i) for o in graph.operators for i in (*o.inputs, *o.outputs)].count(edge)
    scale = graph.tensors[inner].quantization and graph.tensors[inner].quantization.scale
    if graph.tensors[edge].type != types.FLOAT32 or graph.tensors[inner].type not in (types.INT8, types.INT16):
        return False
    constant = side == "outputs" and not any(inner in [int(i) for i in o.outputs] for o in graph.operators if len(o.outputs))
    return [int(i) for i in edges].count(edge) == 1 and users == 1 and inner not in taken and scale is not None and len(scale) == 1 and not constant


def _move(model: Any, graph: Any, operator: Any, side: str, edge: int, inner: int) -> str:
    name = flatbuffer.text(graph.tensors[edge].name)
    graph.operators.remove(operator)
    setattr(graph, side, [inner if int(i) == edge else int(i) for i in getattr(graph, side)])
    for definition in model.signatureDefs or []:
        for port in getattr(definition, side) or [] if definition.subgraphIndex == 0 else []:
            if int(port.tensorIndex) == edge:
                port.tensorIndex, name = inner, flatbuffer.text(port.name)
    return name
