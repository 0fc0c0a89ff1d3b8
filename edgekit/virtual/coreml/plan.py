"""A program prepared for running: kernels found, constants decoded, compressed weights expanded, lifetimes known. Done once, run often."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from edgekit.errors import ConversionError, require
from edgekit.virtual.coreml import spec
from edgekit.virtual.coreml.constants import decode, rounded
from edgekit.virtual.coreml.package import Package

TUPLES = frozenset({"values", "loop_vars", "ref_tensors", "begins", "ends", "end_masks", "elem_shape"})
"""Parameters that take several values, also when a program binds only one."""

CONTROL = frozenset({"cond", "while_loop"})
STATE = frozenset({"read_state", "write_state"})


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation: `constants` are ready arguments, `variables` name what runs before; `release` are names not needed afterwards."""

    operation: spec.Operation
    kernel: Any
    constants: dict[str, Any]
    variables: dict[str, tuple[Any, ...]]
    blocks: tuple[Plan, ...]
    release: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A block's steps. `fixed` holds results that are constants."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    fixed: dict[str, Any]


def prepare(package: Package) -> Plan:
    """Make a package's program ready.

    Raises `ConversionError` naming the operator and layer that has no interpreter, `BundleError` for damaged constants,
    `MissingPackageError` without torch.
    """
    require("torch", extra="coreml", purpose="running an ML Program on this machine")
    from edgekit.virtual.coreml import kernels

    table = kernels.load()
    _refuse_unknown(package.program.block, table)
    return _plan(package.program.block, package, table, {})


def _refuse_unknown(block: spec.Block, table: dict[str, Any]) -> None:
    for operation in block.operations:
        if operation.type not in table and operation.type not in CONTROL | STATE | {"const"}:
            raise ConversionError(
                f"operator {operation.type} (layer {operation.name}) has no interpreter here",
                "run the package on a Mac or a phone, or keep this operator out of the program",
            )
        for inner in operation.blocks:
            _refuse_unknown(inner, table)


def _plan(block: spec.Block, package: Package, table: dict[str, Any], outer: dict[str, Any]) -> Plan:
    known = dict(outer)
    last_use = _last_uses(block)
    steps: list[Step] = []
    for index, operation in enumerate(block.operations):
        release = tuple(name for name, at in last_use.items() if at == index)
        try:
            step = _step(operation, package, table, known, release)
        except (TypeError, ValueError, RuntimeError, IndexError, KeyError) as error:
            raise ConversionError(f"operator {operation.type} (layer {operation.name}): {error}") from error
        if step is not None:
            steps.append(step)
    return Plan(tuple(x.name for x in block.inputs), block.outputs, tuple(steps), {name: known[name] for name in block.outputs if name in known})


def _step(operation: spec.Operation, package: Package, table: dict[str, Any], known: dict[str, Any], release: tuple[str, ...]) -> Step | None:
    """The step of an operation; a constant is put into `known` instead."""
    if operation.type == "const":
        known[operation.outputs[0].name] = decode(operation.attributes["val"], package)
        return None
    constants, variables = _arguments(operation, package, known)
    kernel = table.get(operation.type)
    if operation.type.startswith("constexpr_"):
        constants |= {name: decode(value, package) for name, value in operation.attributes.items() if name != "name"}
        if variables:
            raise ConversionError(f"operator {operation.type} (layer {operation.name}) takes {', '.join(variables)}, which is not constant")
        results = table[operation.type](**constants)
        made = results if isinstance(results, tuple) else (results,)
        known.update({x.name: rounded(value, x.type.dtype) for x, value in zip(operation.outputs, made, strict=True)})
        return None
    if kernel is not None:
        _check_arguments(operation, kernel, [*constants, *variables])
    blocks = tuple(_plan(inner, package, table, known) for inner in operation.blocks)
    return Step(operation, kernel, constants, variables, blocks, release)


def _arguments(operation: spec.Operation, package: Package, known: dict[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """Constant arguments, and those that need a run: per parameter a tuple of names (str) and constants (boxed in a 1-tuple)."""
    constants: dict[str, Any] = {}
    variables: dict[str, tuple[Any, ...]] = {}
    for parameter, bindings in operation.inputs.items():
        items = tuple(_boxed(binding, package, known) for binding in bindings)
        if any(isinstance(item, str) for item in items):
            variables[parameter] = items
        elif items:
            values = tuple(item[0] for item in items)
            constants[parameter] = values if parameter in TUPLES else values[0]
    return constants, variables


def _boxed(binding: str | spec.Constant, package: Package, known: dict[str, Any]) -> Any:
    if isinstance(binding, spec.Constant):
        return (decode(binding, package),)
    return (known[binding],) if binding in known else binding


def _check_arguments(operation: spec.Operation, kernel: Any, names: list[str]) -> None:
    try:
        inspect.signature(kernel).bind(**dict.fromkeys(names))
    except TypeError as error:
        raise ConversionError(f"operator {operation.type} (layer {operation.name}) is of a form without interpreter: {error}") from error


def _last_uses(block: spec.Block) -> dict[str, int]:
    """For each name made in this block, the index of the last operation that reads it (also from inside its own blocks)."""
    made = {x.name for operation in block.operations for x in operation.outputs} - set(block.outputs)
    last: dict[str, int] = {}
    for index, operation in enumerate(block.operations):
        for name in _reads(operation):
            if name in made:
                last[name] = index
    return last


def _reads(operation: spec.Operation) -> set[str]:
    names = {b for bindings in operation.inputs.values() for b in bindings if isinstance(b, str)}
    for block in operation.blocks:
        names |= set(block.outputs)
        for inner in block.operations:
            names |= _reads(inner)
    return names
