"""What stands beside the model: where each operator runs, how tensors are scaled, and the compiler's next command."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgekit.graph import Graph, GraphTensor, Operator
from edgekit.virtual.dpu import reader

REASONS_KEY = "edgekit.reasons"

MODEL, PROVIDER, CONFIG = "model.onnx", "VitisAIExecutionProvider", "/usr/bin/vaip_config.json"

QUANTIZERS = ("QuantizeLinear", "DequantizeLinear", "Constant")


def graph(path: Path) -> Graph:
    """The operators of a written artifact with MACs: quantizers left out, factors and activations part of the operator that they follow.

    `cpu` in the attributes says why one is not on the DPU, `suggestion` what to change, `fused` what it computes behind itself.
    """
    import onnx

    proto = onnx.shape_inference.infer_shapes(onnx.load(path))
    reasons = msgspec.json.decode(_metadata(proto).get(REASONS_KEY, "{}"), type=dict[str, tuple[str, str]])
    cpu = set(msgspec.json.decode(_metadata(proto).get(reader.CPU_KEY, "[]"), type=list[str]))
    tensors, index = _tensors(proto)
    operators = []
    for number, nodes in enumerate(_fused(proto, cpu)):
        head, name = nodes[0], nodes[-1].output[0]
        why, suggestion = reasons.get(name, ("beside an operator on the CPU", "")) if name in cpu else ("", "")
        made = tuple(index.get(n.removesuffix("/real"), index.get(n, -1)) for n in nodes[-1].output)  # as its readers call it
        given = tuple(index.get(n, -1) for n in head.input)
        attributes = {"cpu": why, "suggestion": suggestion} if why else {}
        attributes |= {"fused": "+".join(node.op_type for node in nodes[1:])} if len(nodes) > 1 else {}
        macs = _macs(head, tensors, index)
        operators.append(Operator(number, head.op_type, _opset(proto), name.removesuffix("/real"), given, made, attributes, macs))
    stored = {tensor.name for tensor in proto.graph.initializer}
    ends = [tuple(index[v.name] for v in side if v.name not in stored) for side in (proto.graph.input, proto.graph.output)]
    return Graph("dpu", tuple(tensors), tuple(operators), ends[0], ends[1], path.stat().st_size)


def _fused(proto: Any, cpu: set[str]) -> list[list[Any]]:
    """Nodes without quantizers, those between an operator of the DPU and its quantizer with it."""
    found: dict[str, list[Any]] = {}
    for node in proto.graph.node:
        if node.op_type in QUANTIZERS:
            continue
        before = found.pop(node.input[0], None) if node.input and node.output[0] not in cpu and node.input[0] not in cpu else None
        found[node.output[0]] = [*(before or []), node]
    return list(found.values())


def write_side_files(folder: Path, proto: Any) -> None:
    """`quantization.json` and `README.txt` beside the model."""
    arch = _metadata(proto).get("edgekit.arch", "any")
    info = {
        "arch": arch,
        "rounding": _metadata(proto).get(reader.ROUNDING_KEY, ""),
        "format": "int8, symmetric, scale 2^-position, zero point 0; biases int8 with a position of their own",
        "positions": _positions(proto),
        "cpu": msgspec.json.decode(_metadata(proto).get(reader.CPU_KEY, "[]")),
    }
    (folder / "quantization.json").write_bytes(msgspec.json.format(msgspec.json.encode(info, order="deterministic"), indent=1))
    (folder / "README.txt").write_text(_readme(arch), encoding="utf-8")


def _readme(arch: str) -> str:
    if arch == "any":
        return "model.onnx is QDQ int8 with power-of-two scales; give it to your accelerator's compiler. quantization.json lists the positions.\n"
    return (
        f"model.onnx is QDQ int8 with power-of-two scales, within the limits of {arch}; quantization.json lists the positions.\n"
        "No compiler was run here. ONNX Runtime's VitisAI provider compiles model.onnx when it loads it; the next command, in this folder on the\n"
        "board's image (config_file is where that image keeps the provider's configuration):\n"
        f'  python3 -c "import onnxruntime as o; o.InferenceSession({MODEL!r}, providers=[{PROVIDER!r}], '
        f"provider_options=[{{'config_file': {CONFIG!r}, 'cacheDir': '.', 'cacheKey': 'compiled'}}])\"\n"
    )


def trim(graph: Graph, folder: Path) -> dict[str, str]:
    """Write `partition.txt`: what runs where, why, and what to change."""
    left = [operator for operator in graph.operators if operator.attributes.get("cpu")]
    taken = [operator for operator in graph.operators if not operator.attributes.get("cpu")]
    lines = [_share("DPU", taken, graph.macs, f" in {parts(graph)} part(s)"), _share("CPU", left, graph.macs, "")]
    for operator in left:
        lines.append(f"  {operator.type} {operator.name}: {operator.attributes['cpu']}")
        if suggestion := operator.attributes.get("suggestion"):
            lines.append(f"    change: {suggestion}")
    (folder / "partition.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"partition.txt": "which operators run on the DPU and which on the CPU, why, and what to change"}


def _share(place: str, operators: Sequence[Operator], total: int, more: str) -> str:
    macs = sum(operator.macs for operator in operators)
    share = 100 * macs / total if total else 100.0 * bool(operators)
    kinds = Counter(operator.type for operator in operators)
    listed = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    return f"{place}: {len(operators)} operator(s){more}, {macs} MACs ({share:.2f} %)" + (f": {listed}" if listed else "")


def parts(graph: Graph) -> int:
    """How many pieces the DPU gets: operators that touch without the CPU between them are one."""
    place: dict[int, tuple[int, bool]] = {}
    piece: dict[int, int] = {}
    for number, operator in enumerate(graph.operators):
        on_cpu, before = bool(operator.attributes.get("cpu")), [tensor for tensor in operator.inputs if tensor in place]
        level = max((place[t][0] + (place[t][1] != on_cpu) for t in before), default=0)
        joined = {piece[t] for t in before if place[t] == (level, on_cpu)}
        for tensor, known in piece.items():
            piece[tensor] = number if known in joined else known
        for tensor in operator.outputs:
            place[tensor], piece[tensor] = (level, on_cpu), number
    return len({piece[tensor] for tensor, (_, on_cpu) in place.items() if not on_cpu})


def _metadata(proto: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}


def _opset(proto: Any) -> int:
    return next((int(o.version) for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)


def _positions(proto: Any) -> dict[str, int]:
    """Positions of int8 tensors and constants by name."""
    import onnx

    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    found = {}
    for node in proto.graph.node:
        if node.op_type in QUANTIZERS[:2]:
            name = node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]
            found[name] = round(-math.log2(float(onnx.numpy_helper.to_array(stored[node.input[1]]).ravel()[0])))
    return found


def _tensors(proto: Any) -> tuple[list[GraphTensor], dict[str, int]]:
    """Tensors as the operators see them: a dequantized one is int8 with its scale."""
    import onnx

    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    scaled = {node.output[0]: node for node in proto.graph.node if node.op_type == "DequantizeLinear"}
    values = {v.name: v.type.tensor_type for v in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)}
    tensors: list[GraphTensor] = []
    for name in dict.fromkeys([*values, *stored]):
        kind = values[name].elem_type if name in values else stored[name].data_type
        shape = tuple(d.dim_value or -1 for d in values[name].shape.dim) if name in values else tuple(stored[name].dims)
        dtype, constant = str(onnx.helper.tensor_dtype_to_np_dtype(kind)), name in stored
        scale: tuple[float, ...] = ()
        held = stored.get(name)
        if name in scaled:
            held = stored.get(scaled[name].input[0])
            scale = (float(onnx.numpy_helper.to_array(stored[scaled[name].input[1]]).ravel()[0]),)
            dtype, constant = ("int8" if held is None else str(onnx.helper.tensor_dtype_to_np_dtype(held.data_type))), held is not None
        size = 0 if held is None else onnx.numpy_helper.to_array(held).nbytes
        tensors.append(GraphTensor(name, shape, dtype, scale, (0,) if scale else (), 0, constant, size))
    return tensors, {tensor.name: i for i, tensor in enumerate(tensors)}


def _macs(node: Any, tensors: list[GraphTensor], index: dict[str, int]) -> int:
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul") or any(name not in index for name in (*node.input[:2], node.output[0])):
        return 0
    source, weight, out = (tensors[index[name]].shape for name in (node.input[0], node.input[1], node.output[0]))
    if node.op_type in ("Conv", "ConvTranspose"):
        return abs(math.prod(out if node.op_type == "Conv" else source)) * math.prod(weight[1:])
    return abs(math.prod(out)) * source[-1]
