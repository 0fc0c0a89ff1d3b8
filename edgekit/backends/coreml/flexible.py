"""Packages that take several shapes, each of them listed: the neural engine plans for listed shapes, not for ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit.errors import ConversionError, RunnerError
from edgekit.formats import mlprogram_write
from edgekit.virtual.coreml import package as packages
from edgekit.virtual.coreml import shapes
from edgekit.virtual.coreml.shapes import Shapes

MOST = 128
"""Shapes that Core ML lists (coremltools documentation, flexible inputs)."""
SEVERAL_SINCE = "iOS18"
"""From here on more than one input may have listed shapes (coremltools documentation)."""

HINT = "let every size in the model follow the input's, or build a bundle for each shape"


def enumerated(folder: Path, others: Sequence[Shapes], deployment: str) -> None:
    """Let the package at `folder` take `others` too, beside the shapes that it was built for: by input name, those of the package.

    Sizes that differ from shape to shape become open ones in the program, and the interface lists the shapes. Raises `ConversionError` naming
    the operator that holds on to a size, and where Core ML lists no such shapes.
    """
    opened = packages.read(folder)
    first = {item.name: item.type.shape for item in opened.program.inputs}
    listed = sorted({name for other in others for name, shape in other.items() if shape != first[name]})
    if len(others) >= MOST:
        raise ConversionError(f"{len(others) + 1} shapes, and Core ML lists {MOST} at most")
    if len(listed) > 1 and deployment < SEVERAL_SINCE:
        raise ConversionError(f"{', '.join(listed)} have several shapes each, which Core ML takes from {SEVERAL_SINCE} on", "choose ios18-coreml")
    known = [{**first, **shapes.results(opened, first)}, *(_known(opened, {**first, **other}) for other in others)]
    made = _specification(opened.model.read_bytes())
    _open_sizes(made, known)
    for feature in made.description.input:
        if feature.name in listed:
            _list(feature.type, [found[feature.name] for found in known])
    opened.model.write_bytes(made.SerializeToString(deterministic=True))


def _known(opened: packages.Package, inputs: Shapes) -> dict[str, tuple[int, ...]]:
    try:
        return {**inputs, **shapes.results(opened, inputs)}
    except RunnerError as error:
        said = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in inputs.items())
        raise ConversionError(f"the program does not take {said}: {error.message}", HINT) from error


def _specification(data: bytes) -> Any:
    mlprogram_write.coremltools()
    from coremltools.proto import Model_pb2

    made = Model_pb2.Model()
    made.ParseFromString(data)
    return made


def _open_sizes(made: Any, known: Sequence[Mapping[str, tuple[int, ...]]]) -> None:
    main = made.mlProgram.functions["main"]
    values = [*main.inputs, *_results(main.block_specializations.values())]
    for value in values:
        sizes = [found[value.name] for found in known if value.name in found]
        for axis, dimension in enumerate(value.type.tensorType.dimensions):
            if len({shape[axis] for shape in sizes}) > 1:
                dimension.unknown.variadic = False
    described = {value.name: value.type.tensorType for value in values}
    for feature in made.description.output:
        if any(dimension.HasField("unknown") for dimension in described[feature.name].dimensions):
            del feature.type.multiArrayType.shape[:]


def _results(blocks: Any) -> list[Any]:
    found = []
    for block in blocks:
        for operation in block.operations:
            if operation.type != "const":
                found += [*operation.outputs, *_results(operation.blocks)]
    return found


def _list(kind: Any, wanted: Sequence[tuple[int, ...]]) -> None:
    for shape in dict.fromkeys(wanted):
        if kind.HasField("imageType"):
            kind.imageType.enumeratedSizes.sizes.add(height=shape[2], width=shape[3])
        else:
            kind.multiArrayType.enumeratedShapes.shapes.add(shape=shape)
