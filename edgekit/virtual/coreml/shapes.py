"""The sizes that a program's results have for inputs of given shapes: found by running it, whatever it states."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from edgekit.virtual.coreml import interpreter, spec
from edgekit.virtual.coreml.constants import rounded
from edgekit.virtual.coreml.package import Package
from edgekit.virtual.coreml.plan import prepare

Shapes = Mapping[str, tuple[int, ...]]


def results(package: Package, inputs: Shapes) -> dict[str, tuple[int, ...]]:
    """The shape of every result of the main block (and of blocks that ran), by name, on inputs of zeros.

    Raises `RunnerError` naming the operator that cannot take these sizes, `ConversionError` as preparing a program does.
    """
    import torch

    found: dict[str, tuple[int, ...]] = {}

    def look(operation: spec.Operation, output: spec.Named, computed: Any, stored: Any) -> None:
        del operation, computed
        found[output.name] = tuple(stored.shape)

    wanted = [item for item in package.program.inputs if item.type.kind != "state"]
    zeros = {item.name: rounded(torch.zeros(inputs.get(item.name, item.type.shape)), item.type.dtype) for item in wanted}
    states = {item.name: torch.zeros(item.type.shape) for item in package.program.inputs if item.type.kind == "state"}
    interpreter.run(prepare(package), zeros, states, look)
    return found


def resolved(package: Package) -> Package:
    """The package with the sizes of its default shapes in place of those that its enumerated inputs leave open."""
    listed = [feature for feature in package.program.features_in if feature.shapes]
    if not listed:
        return package
    inputs = {feature.name: feature.shape for feature in listed}
    known = {**results(package, inputs), **inputs}
    taken = tuple(_closed(item, known) for item in package.program.inputs)
    return dataclasses.replace(package, program=dataclasses.replace(package.program, inputs=taken, block=_block(package.program.block, known)))


def _block(block: spec.Block, known: Shapes) -> spec.Block:
    return dataclasses.replace(block, operations=tuple(_operation(item, known) for item in block.operations))


def _operation(item: spec.Operation, known: Shapes) -> spec.Operation:
    outputs, blocks = tuple(_closed(output, known) for output in item.outputs), tuple(_block(inner, known) for inner in item.blocks)
    return dataclasses.replace(item, outputs=outputs, blocks=blocks)


def _closed(item: spec.Named, known: Shapes) -> spec.Named:
    if spec.UNKNOWN not in item.type.shape or item.name not in known:
        return item
    return spec.Named(item.name, dataclasses.replace(item.type, shape=known[item.name]))
