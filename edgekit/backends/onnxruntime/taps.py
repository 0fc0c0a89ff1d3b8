"""An artifact whose intermediate tensors are outputs too, so that a device's values can be compared operator by operator."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from edgekit.backends import Artifact, Tap
from edgekit.errors import require
from edgekit.formats import _onnx_view
from edgekit.graph import Graph
from edgekit.tensors import Signature, TensorSpec


def tapped(artifact: Artifact, out: Path) -> tuple[Artifact, tuple[Tap, ...]]:
    """Write `artifact` to `out` with every float32 tensor of known shape that an operator computes as an output, after the artifact's own.

    Tensors between an operator and its QuantizeLinear are left out: giving them out would take the integer kernel apart.
    """
    onnx = require("onnx", extra="onnx", purpose="opening an artifact's inside")
    proto = onnx.load(artifact.path)
    graph = _onnx_view.graph(proto, artifact.path.stat().st_size)
    own = {artifact.runtime_names.get(spec.name, spec.name): spec.name for spec in artifact.signature.outputs}
    taps, added = [], []
    for operator in (o for o in graph.operators if not all(graph.tensors[i].constant for i in o.inputs if i >= 0)):
        for index in operator.outputs:
            tensor = graph.tensors[index]
            if tensor.name in own:
                taps.append(Tap(own[tensor.name], operator.index, operator.type))
            elif _readable(graph, index) and not any(operator.attributes.get("stored_outputs", ())):
                taps.append(Tap(tensor.name, operator.index, operator.type))
                added.append(TensorSpec(tensor.name, tensor.shape, tensor.dtype))
    kind = onnx.TensorProto.FLOAT
    proto.graph.output.extend(onnx.helper.make_tensor_value_info(spec.name, kind, spec.shape) for spec in added)
    out.write_bytes(proto.SerializeToString(deterministic=True))
    signature = Signature(artifact.signature.inputs, (*artifact.signature.outputs, *added))
    return dataclasses.replace(artifact, path=out, signature=signature), tuple(taps)


def _readable(graph: Graph, index: int) -> bool:
    tensor = graph.tensors[index]
    return tensor.dtype == "float32" and not tensor.constant and all(size > 0 for size in tensor.shape)
