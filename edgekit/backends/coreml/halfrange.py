"""What half precision cannot hold in a program: masks made finite where that changes nothing, operators kept in single precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from edgekit.tensors import Array, Arrays
from edgekit.virtual.coreml import hazards, interpreter, spec
from edgekit.virtual.coreml.hazards import HALF_MAX, Hazard
from edgekit.virtual.coreml.package import Package
from edgekit.virtual.coreml.plan import Plan, Step

MASKED = 1e4
"""Stands for infinity in a mask: exp(-1e4) is 0 in half and in single precision."""
MASKING = frozenset(("add", "mul", "select"))
HEAVY = frozenset(("conv", "conv_transpose", "linear", "matmul", "einsum", "lstm", "gru", "rnn"))
"""Linear and recurrent layers."""
SMALL_COUNTS = {"log": "x", "rsqrt": "x", "sqrt": "x", "inverse": "x", "real_div": "y"}
"""Operators, and their parameter whose values near zero make large or different results."""
BEHIND = 4
"""Operators in sequence that a small difference of large values is followed back."""
SUFFIX = "_cast_fp16"


@dataclasses.dataclass(frozen=True)
class Legal:
    """A float program prepared for half precision: its plan with finite masks, what was `changed` (result name -> parameter -> value), the
    operators `kept` in single precision, and what to tell.
    """

    plan: Plan
    changed: Mapping[str, Mapping[str, Array]]
    kept: frozenset[str]
    infinite: frozenset[str]
    notices: tuple[str, ...]


def prepare(package: Package, plan: Plan, samples: Sequence[Mapping[str, Any]]) -> Legal:
    """Look for values that leave half precision's range on `samples` (tensors by the program's names)."""
    plan, changed, told = _finite_masks(plan, samples)
    arrays: list[Arrays] = [{name: value.numpy() for name, value in sample.items()} for sample in samples]
    seen = hazards.hazards(package, arrays, plan, underflow_share=0.0)
    found = [item for item in seen if item.kind == "overflow" and item.output not in changed]
    delicate = _delicate(plan)
    lost = [item for item in seen if item.kind in ("cancellation", "phase") or (item.kind == "underflow" and item.output in delicate)]
    kept = _with_readers(plan, {item.output for item in found}) | _behind(plan, {item.output for item in lost})
    kept |= frozenset(name for item in lost if item.kind == "underflow" for name in delicate[item.output])
    notices = [f"{item.text}: kept in single precision, with the operators that read it" for item in found]
    notices += [f"{item.text}: kept in single precision, with the operators that it is made by" for item in lost]
    infinite = frozenset(item.output for item in seen if item.kind in ("infinity", "nan", "infinite constant"))
    return Legal(plan, changed, kept, infinite, (*told, *notices))


def broken(package: Package, samples: Sequence[Arrays], infinite: Collection[str]) -> tuple[Hazard, ...]:
    """Results of a half-precision program that are not finite, but for those named in `infinite`: they are so in float."""
    seen = hazards.hazards(package, samples)
    return tuple(item for item in seen if item.kind in ("infinity", "nan") and item.output.removesuffix(SUFFIX) not in infinite)


def around(plan: Plan, found: Iterable[Hazard]) -> frozenset[str]:
    """The operators that make broken results, those that make what they read, and those that read them: an epsilon is lost before it is missed."""
    results = {item.output.removesuffix(SUFFIX) for item in found}
    reads = {name for step in plan.steps if _results(step) & results for name in _reads(step)}
    return _with_readers(plan, results) | _makers(plan, reads)


def _finite_masks(plan: Plan, samples: Sequence[Mapping[str, Any]]) -> tuple[Plan, dict[str, dict[str, Array]], list[str]]:
    """Constants of masks beyond half precision's range brought inside, where the outputs of all samples stay what they are."""
    changed: dict[str, dict[str, Array]] = {}
    told: list[str] = []
    for place, step in enumerate(plan.steps):
        values = {name: _clipped(value) for name, value in step.constants.items() if step.operation.type in MASKING and _beyond(value)}
        if not values:
            continue
        trial = dataclasses.replace(step, constants={**step.constants, **values})
        other = dataclasses.replace(plan, steps=(*plan.steps[:place], trial, *plan.steps[place + 1 :]))
        if samples and _same_outputs(plan, other, samples):
            plan = other
            changed[step.operation.outputs[0].name] = {name: value.numpy() for name, value in values.items()}
            name = f"{step.operation.type} {step.operation.name}"
            told.append(f"{name}: a mask of infinite or huge values became {MASKED:g}; no output of a sample changed")
    return plan, changed, told


def _beyond(value: Any) -> bool:
    return hasattr(value, "is_floating_point") and value.is_floating_point() and bool((value.abs() > HALF_MAX).any())


def _clipped(value: Any) -> Any:
    import torch

    return torch.where(value.abs() > HALF_MAX, torch.sign(value) * MASKED, value)


def _same_outputs(first: Plan, second: Plan, samples: Sequence[Mapping[str, Any]]) -> bool:
    return all(a.equal(b) for sample in samples for a, b in zip(interpreter.run(first, sample, {}), interpreter.run(second, sample, {}), strict=True))


def _with_readers(plan: Plan, results: set[str]) -> frozenset[str]:
    return frozenset(step.operation.name for step in plan.steps if results & (_results(step) | _reads(step)))


def _behind(plan: Plan, results: set[str]) -> frozenset[str]:
    """The operators that make results, and a few before them, but no linear layers: what those give is rounded, once for all that read it."""
    wanted, found = dict.fromkeys(results, BEHIND), set()
    for step in reversed(plan.steps):
        left = max((wanted.get(name, -1) for name in _results(step)), default=-1)
        if left >= 0 and step.operation.type not in HEAVY:
            found.add(step.operation.name)
            wanted |= {name: max(left - 1, wanted.get(name, -1)) for name in _reads(step)}
    return frozenset(found)


def _delicate(plan: Plan) -> dict[str, list[str]]:
    """Results whose smallest values count, and the operators that read them: what is divided by, or taken the logarithm or a root of."""
    found: dict[str, list[str]] = {}
    for step in plan.steps:
        for name in step.operation.inputs.get(SMALL_COUNTS.get(step.operation.type, ""), ()):
            if isinstance(name, str):
                found.setdefault(name, []).append(step.operation.name)
    return found


def _makers(plan: Plan, names: set[str]) -> frozenset[str]:
    return frozenset(step.operation.name for step in plan.steps if _results(step) & names)


def _results(step: Step) -> set[str]:
    return {output.name for output in step.operation.outputs}


def _reads(step: Step) -> set[str]:
    bound: list[str | spec.Constant] = [item for items in step.operation.inputs.values() for item in items]
    return {item for item in bound if isinstance(item, str)}
