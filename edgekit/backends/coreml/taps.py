"""A package whose intermediate tensors are outputs too, so that a device's values can be compared operator by operator."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from edgekit.backends import Artifact, Tap
from edgekit.tensors import Signature, TensorSpec
from edgekit.virtual.coreml import package, rewire, shapes, spec


def tapped(artifact: Artifact, out: Path) -> tuple[Artifact, tuple[Tap, ...]]:
    """Copy `artifact` to the folder `out`, with every tensor that an operator of the main block computes as an output, after its own.

    Left out are constants, tensors of types that Core ML gives to no app, without axes, and of sizes that are known at run time only.
    """
    opened = shapes.resolved(package.read(artifact.path))
    own = {artifact.runtime_names.get(item.name, item.name): item.name for item in artifact.signature.outputs}
    taps: list[Tap] = []
    added: list[spec.Named] = []
    number = 0
    for operation in (x for x in opened.program.block.operations if x.type != "const"):
        for result in operation.outputs if not operation.type.startswith("constexpr_") else ():
            if result.name in own:
                taps.append(Tap(own[result.name], number, operation.type))
            elif _readable(result):
                taps.append(Tap(_name(result, own), number, operation.type))
                added.append(result)
        number += _operators(operation)
    shutil.copytree(artifact.path, out)
    model = out / opened.model.relative_to(artifact.path)
    model.write_bytes(rewire.with_outputs(model.read_bytes(), opened.program, added))
    specs = tuple(TensorSpec(_name(item, own), item.type.shape, item.type.dtype) for item in added)
    renamed = {_name(item, own): item.name for item in added if _name(item, own) != item.name}
    signature = Signature(artifact.signature.inputs, (*artifact.signature.outputs, *specs))
    return dataclasses.replace(artifact, path=out, signature=signature, runtime_names={**artifact.runtime_names, **renamed}), tuple(taps)


def _readable(result: spec.Named) -> bool:
    return result.type.kind == "tensor" and result.type.dtype in rewire.FEATURES and bool(result.type.shape) and min(result.type.shape) > 0


def _name(result: spec.Named, own: dict[str, str]) -> str:
    """The tensor's own name, unless an output of the source is called so."""
    return f"{result.name} inside" if result.name in own.values() else result.name


def _operators(operation: spec.Operation) -> int:
    """As the listing of operators counts them: one that holds others comes before them."""
    return 1 + sum(_operators(inner) for block in operation.blocks for inner in block.operations if inner.type != "const")
