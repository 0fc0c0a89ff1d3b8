"""What every hop to ONNX ends with: the source's names and order, checked by onnx and by running beside the source."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekit.errors import ConversionError, require
from edgekit.formats import Model, onnx
from edgekit.formats._onnx_graph import graphs, layer, rename_values
from edgekit.formats._source import digest_of_files
from edgekit.formats.tflite_flatbuffer import write
from edgekit.tensors import Signature, TensorSpec


def result(source: Model, proto: Any, ends: tuple[Sequence[str], Sequence[str]], workdir: Path) -> Model:
    """The converted model; `ends` are the proto's names of the inputs and outputs, in the source's order. It is written to `workdir`."""
    names = source.signature
    wanted = {**dict(zip(ends[0], [s.name for s in names.inputs], strict=True)), **dict(zip(ends[1], [s.name for s in names.outputs], strict=True))}
    _check_known(proto, source.name)
    _forget_origin(proto)
    _rename(proto, wanted)
    _reorder(proto.graph.input, [s.name for s in names.inputs])
    _reorder(proto.graph.output, [s.name for s in names.outputs])
    path = write(workdir / f"{source.name}.onnx", proto.SerializeToString(deterministic=True))
    made = onnx.from_proto(proto, source.name, digest_of_files(path), {s.name: s.shape for s in names.inputs}, path)
    signature = Signature(_agreed(names.inputs, made.signature.inputs), _agreed(names.outputs, made.signature.outputs))
    return dataclasses.replace(made, signature=signature, notices=(*source.notices, *made.notices), examples=source.examples)


def _check_known(proto: Any, name: str) -> None:
    """Converters pass on what they do not know, under names that ONNX does not have."""
    defs = require("onnx.defs", extra="onnx", purpose="checking an ONNX model")
    own = {(function.domain, function.name) for function in proto.functions}
    for node in proto.graph.node:
        if not defs.has(node.op_type, node.domain) and (node.domain, node.op_type) not in own:
            what = f"{name}: {node.op_type.removeprefix('TFL_')} in layer {layer(node)} has no counterpart in ONNX"
            raise ConversionError(what, "replace that operator")


def _forget_origin(proto: Any) -> None:
    """Drop stack traces and object numbers, which differ from run to run and tell of the machine."""
    for graph in graphs(proto.graph):
        for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
            part.ClearField("metadata_props")
            part.ClearField("doc_string")
    proto.ClearField("metadata_props")
    for function in proto.functions:
        for part in (function, *function.node, *function.value_info):
            part.ClearField("metadata_props")
            part.ClearField("doc_string")


def _rename(proto: Any, wanted: dict[str, str]) -> None:
    """Give ends new names; a value inside that has such a name already moves out of the way."""
    inside = {name for node in proto.graph.node for name in (*node.input, *node.output)} | {tensor.name for tensor in proto.graph.initializer}
    clashes = {name: f"{name}/inside" for name in wanted.values() if name in inside and name not in wanted}
    rename_values(proto.graph, {**clashes, **wanted})


def _reorder(values: Any, names: Sequence[str]) -> None:
    known = {value.name: value for value in values}
    missing = [name for name in names if name not in known]
    if missing:
        raise ConversionError(f"the converter lost {missing[0]} (it has {', '.join(known)})")
    ordered = [type(known[name]).FromString(known[name].SerializeToString()) for name in names]
    del values[:]
    values.extend(ordered)


def _agreed(wanted: tuple[TensorSpec, ...], got: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    for was, now in zip(wanted, got, strict=True):
        if (was.name, was.shape, was.dtype) != (now.name, now.shape, now.dtype):
            raise ConversionError(f"{was.name} was {was.dtype}{list(was.shape)} and became {now.name} {now.dtype}{list(now.shape)} in conversion")
    return wanted
