"""From a float `.tflite` and a candidate to an artifact: the order of the steps."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable
from typing import Any

import msgspec

from edgekit.backends import Artifact, Candidate, Context
from edgekit.backends.litert import half, sensitivity, signatures, source, stock, variants
from edgekit.backends.litert.source import Source
from edgekit.errors import ConversionError
from edgekit.formats import Model
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.legalize.tflite_islands import LEFT_FLOAT
from edgekit.quantize.gathering import HELD_OUT

FEW = f"fewer than {HELD_OUT} samples: the same ones that weights were rounded by also judged the result"


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Read the model once; the result builds one candidate a call."""
    opened = source.open_source(model, context)
    own = _own_precision(opened.fresh())
    if own is not None:
        return lambda candidate: _pass_through(opened, own, candidate)
    return lambda candidate: _build(opened, candidate)


def _build(opened: Source, candidate: Candidate) -> Artifact:
    if candidate.precision == "fp32":
        return _finish(opened, candidate, opened.content, ())
    if candidate.precision == "fp16":
        parsed = opened.fresh()
        notices = tuple(half.store_half(parsed))
        return _finish(opened, candidate, flatbuffer.dump(parsed), notices)
    if candidate.precision in variants.STATIC_BITS and not opened.samples:
        raise ConversionError(
            f"{candidate.precision} needs calibration data: its activations have fixed ranges", "give --calibration, or choose w8, w8-dynamic or fp16"
        )
    if not opened.samples:
        content = stock.quantize(opened.content, candidate, stock.Policy(candidate.keep_float, candidate.wide, opened.context.io))
        return _finish(opened, candidate, content, ("weights are rounded to nearest: there are no samples to round by",))
    built = variants.best(opened, candidate)
    few = (FEW,) if candidate.rounding != "nearest" and len(opened.samples) < HELD_OUT else ()
    artifact = _finish(opened, candidate, built.content, (*few, *_edge(opened, candidate), *built.notices, *_left_float(candidate, built.content)))
    costs = sensitivity.measure(opened, candidate, built)
    spared = tuple((cost.operator, cost.loss_db, cost.more_bytes) for cost in costs if candidate.precision not in variants.STATIC_BITS)
    return dataclasses.replace(artifact, sensitivity=tuple((cost.operator, cost.loss_db, cost.reason) for cost in costs), spared=spared)


def _edge(opened: Source, candidate: Candidate) -> tuple[str, ...]:
    if opened.context.io == "int8" and candidate.precision not in variants.STATIC_BITS:
        return (f"inputs and outputs stay float32: {candidate.precision} computes in float",)
    return ()


def _left_float(candidate: Candidate, content: bytes) -> tuple[str, ...]:
    """A notice about the operators that compute in float though integers were asked for."""
    if candidate.precision not in variants.STATIC_BITS:
        return ()
    model, float32 = flatbuffer.load(content), flatbuffer.schema().TensorType.FLOAT32
    graph, left = model.subgraphs[0], dict[str, int]()
    for op in graph.operators:
        kind = flatbuffer.op_name(model, op)
        if kind not in ("QUANTIZE", "DEQUANTIZE") and any(graph.tensors[i].type == float32 for i in op.outputs):
            left[kind] = left.get(kind, 0) + 1
    if not left:
        return ()
    return (f"{LEFT_FLOAT}{', '.join(f'{count} {kind}' for kind, count in sorted(left.items()))}",)


def _finish(opened: Source, candidate: Candidate, content: bytes, notices: tuple[str, ...]) -> Artifact:
    if candidate.precision == "fp32":
        return _artifact(opened, candidate, _float(opened), notices)
    content, float_bytes = _merged(content), len(_float(opened))
    if len(content) >= float_bytes:
        sizes = f"{len(content)} bytes against {float_bytes}"
        notices += (f"{candidate.precision} is no smaller than float: {sizes}; the weights are too few to pay for scales and extra operators",)
    return _artifact(opened, candidate, content, notices)


def _float(opened: Source) -> bytes:
    """The float model's own file, or as it is written with the source's names."""
    return opened.content if opened.as_given else _merged(opened.content)


def _merged(content: bytes) -> bytes:
    parsed = flatbuffer.load(content)
    flatbuffer.merge_buffers(parsed)
    return flatbuffer.dump(parsed)


def _artifact(opened: Source, candidate: Candidate, content: bytes, notices: tuple[str, ...]) -> Artifact:
    key = hashlib.sha256(msgspec.json.encode(candidate)).hexdigest()[:8]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", opened.model.name) or "model"
    path = flatbuffer.write(opened.context.workdir / f"{stem}.{candidate.precision}.{key}.tflite", content)
    signature = signatures.stored_signature(flatbuffer.load(content), opened.model.signature)
    return Artifact(path, "tflite", signature, candidate, notices=notices)


def own_precision(model: Model) -> str | None:
    """The precision of a model that is already quantized, None for a float one."""
    return _own_precision(flatbuffer.load(model.path.read_bytes(), model.name)) if model.path else None


def _own_precision(parsed: Any) -> str | None:
    """The precision of a model that is no longer float, None for a float one."""
    types = flatbuffer.schema().TensorType
    scaled = [tensor for graph in parsed.subgraphs for tensor in graph.tensors if _scaled(tensor)]
    weights = {tensor.type for tensor in scaled if flatbuffer.constant(parsed, tensor) is not None}
    computed = [tensor.type for tensor in scaled if flatbuffer.constant(parsed, tensor) is None]
    wide, narrow = computed.count(types.INT16), sum(computed.count(kind) for kind in (types.INT8, types.UINT8))
    if wide or narrow:
        return "w8a16" if wide > narrow else "w8a8"
    if not weights & {types.INT8, types.UINT8}:
        return None
    explicit = any(flatbuffer.op_name(parsed, op) == "DEQUANTIZE" for graph in parsed.subgraphs for op in graph.operators)
    return "w8" if explicit else "w8-dynamic"


def _scaled(tensor: Any) -> bool:
    return tensor.quantization is not None and tensor.quantization.scale is not None and len(tensor.quantization.scale) > 0


def _pass_through(opened: Source, own: str, candidate: Candidate) -> Artifact:
    if candidate.precision != own:
        hint = f"use --precision {own}, or give the float model"
        raise ConversionError(f"{opened.model.name} is already quantized ({own}) and cannot become {candidate.precision}", hint)
    return _artifact(opened, candidate, opened.content, (f"the model is already {own}: packaged with its own weights and scales",))
