"""What every hop to LiteRT ends with: the file is opened, checked against the source's signature, and checked to start."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from edgekit import formats
from edgekit.errors import ConversionError, require
from edgekit.formats import Model
from edgekit.formats._quiet import quiet
from edgekit.tensors import Signature, TensorSpec

_NARROWED = {"int64": "int32", "float64": "float32"}


def result(source: Model, path: Path, notices: Sequence[str]) -> Model:
    """The converted model, under the source's name, with its layouts and examples. Raises `ConversionError` when names, shapes or types moved."""
    made: Model = formats.module("tflite").open(str(path), {})
    inputs, outputs = _agreed(source.signature.inputs, made.signature.inputs), _agreed(source.signature.outputs, made.signature.outputs)
    check_starts(path, made)
    narrowed = [
        f"{side} {now.name}: {was.dtype} becomes {now.dtype}, as LiteRT runs it"
        for side, old, new in (("input", source.signature.inputs, inputs), ("output", source.signature.outputs, outputs))
        for was, now in zip(old, new, strict=True)
        if was.dtype != now.dtype
    ]
    examples = None
    if source.examples is not None:
        examples = {spec.name: source.examples[spec.name].astype(spec.dtype) for spec in inputs}
    return dataclasses.replace(
        made, name=source.name, signature=Signature(inputs, outputs), notices=(*source.notices, *notices, *narrowed, *made.notices), examples=examples
    )


def check_starts(path: Path, model: Model) -> None:
    """Raise `ConversionError` when the LiteRT runtime refuses the file: an operator without a kernel, a custom or Flex operator."""
    interpreter = require("ai_edge_litert.interpreter", extra="litert", purpose="running a .tflite file")
    try:
        with quiet():
            interpreter.Interpreter(model_path=str(path), num_threads=1).allocate_tensors()
    except (ValueError, RuntimeError) as error:
        text = _sentence(str(error))
        layers = [f"{operator.type} (layer {operator.name})" for operator in formats.module("tflite").graph(model).operators if operator.type in text]
        named = f"{model.name}: no kernel for {layers[0]}: " if layers else ""
        what = f"{named}the converted file does not start in LiteRT: {text}"
        raise ConversionError(what, "replace that operator in the model") from error


def _agreed(wanted: tuple[TensorSpec, ...], got: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    if [s.name for s in wanted] != [s.name for s in got]:
        raise ConversionError(f"the converter returned {[s.name for s in got]}, not {[s.name for s in wanted]}")
    for was, now in zip(wanted, got, strict=True):
        if was.shape != now.shape or now.dtype not in (was.dtype, _NARROWED.get(was.dtype)):
            raise ConversionError(f"{was.name} was {was.dtype}{list(was.shape)} and became {now.dtype}{list(now.shape)} in conversion")
    return tuple(_with_layout(now, was.layout) for was, now in zip(wanted, got, strict=True))


def _with_layout(spec: TensorSpec, layout: str) -> TensorSpec:
    return TensorSpec(spec.name, spec.shape, spec.dtype, spec.scale, spec.zero_point, layout)


def _sentence(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[:2])[:300] if lines else "no reason given"
