"""Run a prepared program: one operator after another, each result rounded to the type that the program states.

Half precision is what Core ML's CPU unit does with it: stored as IEEE half after every operator (round to nearest even, overflow to infinity,
subnormals kept), computed in single precision inside one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgekit.errors import RunnerError
from edgekit.virtual.coreml import spec
from edgekit.virtual.coreml.constants import rounded
from edgekit.virtual.coreml.plan import TUPLES, Plan, Step

Tap = Callable[[spec.Operation, spec.Named, Any, Any], None]
"""Called per result as tap(operation, output, computed, stored): the tensor before and after rounding to the stated type."""

MAX_LOOPS = 1_000_000

MOVES = frozenset(
    {"reshape", "reshape_like", "expand_dims", "squeeze", "transpose", "flatten2d", "slice_by_index", "slice_by_size", "concat", "split", "stack"}
    | {"reverse", "tile", "crop", "gather", "gather_along_axis", "depth_to_space", "space_to_depth", "pixel_shuffle", "pixel_unshuffle", "identity"}
    | {"relu", "max_pool", "maximum", "minimum", "select"}
)
"""Operators whose results are some of their operands' values: rounding them again would change nothing."""


def run(plan: Plan, inputs: Mapping[str, Any], states: dict[str, Any], tap: Tap | None = None) -> list[Any]:
    """The program's outputs, in order, for tensors by input name; `states` are read and replaced in place."""
    import torch

    with torch.inference_mode():
        return _block(plan, dict(inputs), states, tap)


def advance(step: Step, values: dict[str, Any], states: dict[str, Any], tap: Tap | None = None) -> None:
    """One operator: its results are put into `values`, and what nothing reads any more is taken out."""
    results = _results(step, values, states, tap)
    for output, result in zip(step.operation.outputs, results, strict=True):
        values[output.name] = _kept(step.operation, output, result, tap)
    for name in step.release:
        values.pop(name, None)


def _block(plan: Plan, values: dict[str, Any], states: dict[str, Any], tap: Tap | None) -> list[Any]:
    for step in plan.steps:
        advance(step, values, states, tap)
    return [values[name] if name in values else plan.fixed[name] for name in plan.outputs]


def _results(step: Step, values: dict[str, Any], states: dict[str, Any], tap: Tap | None) -> tuple[Any, ...]:
    operation = step.operation
    if operation.type == "read_state":
        return (states[_state_name(step)],)
    try:
        arguments = step.constants | {name: _bound(name, items, values) for name, items in step.variables.items() if items[0] not in states}
        if operation.type == "write_state":
            states[_state_name(step)] = arguments["data"]
            return ()
        if operation.type == "cond":
            return tuple(_block(step.blocks[0 if bool(arguments["pred"]) else 1], dict(values), states, tap))
        if operation.type == "while_loop":
            return _loop(step, tuple(arguments["loop_vars"]), values, states, tap)
        results = step.kernel(**arguments)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AssertionError) as error:
        raise RunnerError(f"operator {operation.type} (layer {operation.name}) failed: {error}", stage="invoke") from error
    several = isinstance(results, tuple) and not (operation.outputs and operation.outputs[0].type.kind == "list")
    made = results if several else (results,)
    if len(made) != len(operation.outputs):
        raise RunnerError(
            f"operator {operation.type} (layer {operation.name}) makes {len(made)} results, but the program names {len(operation.outputs)}",
            stage="invoke",
        )
    return made


def _bound(name: str, items: tuple[Any, ...], values: dict[str, Any]) -> Any:
    found = tuple(values[item] if isinstance(item, str) else item[0] for item in items)
    return found if name in TUPLES else found[0]


def _state_name(step: Step) -> str:
    return str(step.variables["input"][0])


def _loop(step: Step, carried: tuple[Any, ...], values: dict[str, Any], states: dict[str, Any], tap: Tap | None) -> tuple[Any, ...]:
    condition, body = step.blocks
    for _ in range(MAX_LOOPS):
        proceed = _block(condition, values | dict(zip(condition.inputs, carried, strict=True)), states, tap)
        if not bool(proceed[0]):
            return carried
        carried = tuple(_block(body, values | dict(zip(body.inputs, carried, strict=True)), states, tap))
    raise ValueError(f"no end after {MAX_LOOPS} rounds")


def _kept(operation: spec.Operation, output: spec.Named, result: Any, tap: Tap | None) -> Any:
    if isinstance(result, tuple | str):
        return result
    stored = result if operation.type in MOVES and tap is None else rounded(result, output.type.dtype)
    if tap is not None:
        tap(operation, output, result, stored)
    return stored
