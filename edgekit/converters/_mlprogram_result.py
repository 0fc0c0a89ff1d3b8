"""What every hop to an ML Program ends with: a float32 package on disk, opened again without coremltools, with the source's ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekit import formats
from edgekit.errors import ConversionError
from edgekit.formats import Model, mlprogram_write
from edgekit.tensors import Signature, TensorSpec

_NARROWED = {"int64": "int32", "float64": "float32", "bool": "float32", "uint8": "int32", "int8": "int32", "int16": "int32"}


def settings() -> dict[str, Any]:
    """How coremltools converts for a hop: in single precision, for the oldest system of the target profiles."""
    ct = mlprogram_write.coremltools()
    return {
        "convert_to": "mlprogram",
        "minimum_deployment_target": ct.target.iOS16,
        "compute_precision": ct.precision.FLOAT32,
        "skip_model_load": True,
    }


def result(source: Model, converted: Any, workdir: Path, notices: Sequence[str] = ()) -> Model:
    """The converted model under the source's names. Raises `ConversionError` when an end has another shape or type than the source's."""
    names = source.signature
    folder = workdir / f"{mlprogram_write.identifier(source.name)}.mlpackage"
    ends = ([mlprogram_write.identifier(spec.name) for spec in part] for part in (names.inputs, names.outputs))
    path = mlprogram_write.save(converted, folder, *ends)
    made: Model = formats.module("mlprogram").open(str(path), {})
    inputs = _agreed("input", names.inputs, made.signature.inputs)
    outputs = _agreed("output", names.outputs, made.signature.outputs)
    narrowed = [
        f"{now.name}: {was.dtype} becomes {now.dtype}, as Core ML takes it"
        for was, now in zip((*names.inputs, *names.outputs), (*inputs, *outputs), strict=True)
        if was.dtype != now.dtype
    ]
    examples = None
    if source.examples is not None:
        examples = {spec.name: source.examples[spec.name].astype(spec.dtype) for spec in inputs}
    told = (*source.notices, *notices, *narrowed, *made.notices)
    return dataclasses.replace(made, name=source.name, signature=Signature(inputs, outputs), notices=told, examples=examples)


def _agreed(side: str, wanted: tuple[TensorSpec, ...], got: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """The source's specs in the package's types. Both are in one order: the converter was told it."""
    if len(wanted) != len(got):
        raise ConversionError(f"the converter returned {len(got)} {side}s for {len(wanted)}")
    for was, now in zip(wanted, got, strict=True):
        if was.shape != now.shape or now.dtype not in (was.dtype, _NARROWED.get(was.dtype)):
            raise ConversionError(f"{was.name} was {was.dtype}{list(was.shape)} and became {now.dtype}{list(now.shape)} in conversion")
    return tuple(TensorSpec(was.name, was.shape, now.dtype, layout=was.layout) for was, now in zip(wanted, got, strict=True))
