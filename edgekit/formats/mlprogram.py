"""Core ML ML Program packages (.mlpackage), read and run without coremltools and without a Mac."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgekit import formats
from edgekit.errors import ConversionError, UsageError, close_match
from edgekit.formats import Model
from edgekit.graph import Graph
from edgekit.opset import table
from edgekit.tensors import Array, Arrays, Signature, TensorSpec
from edgekit.virtual.coreml import listing, spec
from edgekit.virtual.coreml import package as packages
from edgekit.virtual.coreml.interpreter import Tap
from edgekit.virtual.coreml.session import Session


def open(reference: str, inputs: Mapping[str, tuple[int, ...]]) -> Model:
    """Open a package. `inputs` fixes shapes of inputs whose sizes are flexible.

    Raises `UsageError` for an unknown input name, `BundleError` when the package is damaged, hostile or of a newer specification,
    `ConversionError` when it is no ML Program or has an input that is no tensor.
    """
    package = packages.read(Path(reference))
    names = [feature.name for feature in package.program.features_in]
    for name in inputs:
        if name not in names:
            raise UsageError(f"{reference} has no input {name!r}", close_match(name, names))
    notices = _without_meaning(package.program)
    specs = tuple(_input(feature, package.program, inputs, notices) for feature in package.program.features_in)
    model = Model("mlprogram", Path(reference).stem, Signature(specs, ()), package.digest, Path(reference), package, tuple(notices))
    outputs = tuple(TensorSpec(f.name, shape, _dtype(f)) for f, shape in zip(package.program.features_out, _output_shapes(model), strict=True))
    return dataclasses.replace(model, signature=Signature(specs, outputs))


def session(model: Model, tap: Tap | None = None) -> formats.Session:
    """Make a package ready to run here; `tap` sees every operator's result before and after rounding.

    A converted model keeps its source's names where the package cannot have them: they are then matched by the package's order.
    """
    ready, names = Session(package_of(model), tap), feature_names(model)
    return ready if all(was == now for was, now in names.items()) else _Renamed(ready, model.signature, names)


def feature_names(model: Model) -> dict[str, str]:
    """The package's name of each input and output of the model's signature."""
    program = package_of(model).program
    features = (*program.features_in, *program.features_out)
    specs = (*model.signature.inputs, *model.signature.outputs)
    return {spec.name: feature.name for spec, feature in zip(specs, features, strict=True)}


@dataclasses.dataclass(frozen=True)
class _Renamed:
    ready: Session
    signature: Signature
    names: dict[str, str]

    def run(self, inputs: Arrays) -> dict[str, Array]:
        found = self.ready.run({self.names.get(name, name): array for name, array in inputs.items()})
        return {spec.name: found[self.names[spec.name]] for spec in self.signature.outputs}


def graph(model: Model) -> Graph:
    """Operators of the package's program."""
    return listing.graph(package_of(model))


def package_of(model: Model) -> packages.Package:
    """The package behind a model: read once when it was opened, or from its path. Raises `UsageError` for one in memory alone."""
    if isinstance(model.handle, packages.Package):
        return model.handle
    if model.path is None:
        raise UsageError(f"{model.name} has no package on disk")
    return packages.read(model.path)


def _input(feature: spec.Feature, program: spec.Program, inputs: Mapping[str, tuple[int, ...]], notices: list[str]) -> TensorSpec:
    stated = next((x.type for x in program.inputs if x.name == feature.name), None)
    if stated is None or stated.kind != "tensor":
        raise ConversionError(f"input {feature.name} is a {feature.dtype if stated is None else stated.kind}, not a tensor")
    shape = inputs.get(feature.name) or feature.shape or stated.shape
    if feature.channels and feature.name in inputs and len(shape) == 4 and shape[-1] == feature.channels:
        shape = (shape[0], shape[-1], *shape[1:-1])
    if len(shape) != len(stated.shape) or any(fixed not in (size, spec.UNKNOWN) for size, fixed in zip(shape, stated.shape, strict=True)):
        raise UsageError(f"input {feature.name} cannot be {list(shape)}: the program takes {_open(stated.shape)}")
    if any(size < 1 for size in shape):
        raise ConversionError(f"input {feature.name} has the shape {list(shape)}, which is not fixed", f"--input {feature.name}=1x3x224x224 fixes it")
    if feature.flexible:
        notices.append(f"input {feature.name}: the package allows other shapes; fixed at {list(shape)}")
    if feature.channels:
        return TensorSpec(feature.name, (shape[0], *shape[2:], shape[1]), _dtype(feature), layout="NHWC")
    return TensorSpec(feature.name, tuple(shape), _dtype(feature))


def _without_meaning(program: spec.Program) -> list[str]:
    """What no Core ML runs, as far as its operators are known."""
    known = {*table.load("coreml_cpu").ops, "const", "custom_layer"}
    unknown = [operation for operation in program.block.operations if operation.type not in known]
    return [f"operator {operation.type} (layer {operation.name}): Core ML has none of that name" for operation in unknown]


def _open(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join("?" if size == spec.UNKNOWN else str(size) for size in shape) + "]"


def _dtype(feature: spec.Feature) -> str:
    if feature.dtype not in ("float16", "float32", "float64", "int8", "uint8", "int32"):
        raise ConversionError(
            f"{feature.name} is a {feature.dtype}, not a tensor", "a classifier's label output has no place in a bundle: convert without class labels"
        )
    return feature.dtype


def _output_shapes(model: Model) -> list[tuple[int, ...]]:
    """As the program states them; where a size is known only at run time, from runs on zeros and on ones."""
    program = package_of(model).program
    stated = {x.name: x.type.shape for operation in program.block.operations for x in operation.outputs}
    stated |= {x.name: x.type.shape for x in program.inputs}
    shapes = [stated.get(feature.name, feature.shape) for feature in program.features_out]
    if all(size >= 0 for shape in shapes for size in shape):
        return shapes
    ready = Session(package_of(model))
    found, again = (ready.run(_filled(model.signature, value)) for value in (0, 1))
    for feature in program.features_out:
        if found[feature.name].shape != again[feature.name].shape:
            raise ConversionError(f"the size of output {feature.name} depends on the input's values", "pad it to a fixed size in the model")
    return [tuple(found[feature.name].shape) for feature in program.features_out]


def _filled(signature: Signature, value: int) -> dict[str, Any]:
    import numpy as np

    return {item.name: np.full(item.shape, value, item.dtype) for item in signature.inputs}
