"""Values and shapes inside a program that half precision or the neural engine cannot hold, found by running it on samples.

Limits: IEEE half holds up to 65504 and normal numbers from 2**-14. The neural engine takes at most rank 5 and 16384 along an axis (observed by
others on A13 to A15; Apple publishes no list).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from edgekit.tensors import Arrays
from edgekit.virtual.coreml import spec
from edgekit.virtual.coreml.package import Package
from edgekit.virtual.coreml.session import Session

HALF_MAX = 65504.0
HALF_SMALLEST_NORMAL = 2.0**-14
NEURAL_ENGINE_RANK = 5
NEURAL_ENGINE_SIZE = 16384
UNDERFLOW_SHARE = 0.01
"""An operator is reported when more than this share of its non-zero values is below the smallest normal number."""

WORDS = {
    "overflow": "finite values above 65504, which half precision stores as infinity",
    "infinity": "infinite values",
    "nan": "values that are not numbers",
    "underflow": "values below the smallest normal half, which lose digits or become 0",
    "infinite constant": "a constant with infinite values, as attention masks have; a finite one such as -10000 is safe in half precision",
    "rank": "more than 5 axes, which the neural engine refuses",
    "dimension": "an axis longer than 16384, which the neural engine refuses",
}


class Hazard(msgspec.Struct, frozen=True):
    """One finding at one operator result: `kind` is a key of `WORDS`; `value` is the worst value (or the rank, or the size).

    `stored` is the type that the program states: `overflow` in a float32 program is what half precision would do. `count` of `total` values,
    over all samples.
    """

    kind: str
    operator: str
    layer: str
    output: str
    stored: str
    value: float
    count: int = 0
    total: int = 0

    @property
    def text(self) -> str:
        """One line for a report."""
        share = f" ({self.count} of {self.total})" if self.total else ""
        return f"{self.operator} {self.layer}: {WORDS[self.kind]}; {self.value:g}{share}"


def hazards(package: Package, samples: Iterable[Arrays]) -> tuple[Hazard, ...]:
    """What a program's shapes, constants and values on `samples` put at risk, in the program's order, one finding per kind and operator result."""
    found: dict[tuple[str, str], Hazard] = {}
    for item in (*_shapes(package.program.block), *_infinite_constants(package)):
        found[item.kind, item.output] = item

    def tap(operation: spec.Operation, output: spec.Named, computed: Any, stored: Any) -> None:
        del stored
        for item in _values(operation, output, computed):
            earlier = found.get((item.kind, item.output))
            found[item.kind, item.output] = item if earlier is None else _merged(earlier, item)

    session = Session(package, tap)
    for sample in samples:
        session.run(sample)
    merged = [item for item in found.values() if item.kind != "underflow" or item.count > UNDERFLOW_SHARE * item.total]
    return tuple(item for item in merged if item.count or item.kind in ("rank", "dimension"))


def _merged(a: Hazard, b: Hazard) -> Hazard:
    worse = min(a.value, b.value) if a.kind == "underflow" and min(a.value, b.value) > 0 else max(a.value, b.value, key=abs)
    return msgspec.structs.replace(a, value=worse, count=a.count + b.count, total=a.total + b.total)


def _values(operation: spec.Operation, output: spec.Named, computed: Any) -> list[Hazard]:
    """Findings of one result; counts of 0 are kept so that the shares of later samples are right."""
    import torch

    if not isinstance(computed, torch.Tensor) or not computed.is_floating_point() or not output.type.dtype.startswith("float"):
        return []
    size = computed.abs()
    finite = torch.isfinite(computed)
    small = (size < HALF_SMALLEST_NORMAL) & (size > 0)
    masks = {
        "overflow": finite & (size > HALF_MAX),
        "infinity": torch.isinf(computed),
        "nan": torch.isnan(computed),
        "underflow": small,
    }
    return [_hazard(kind, operation, output, computed, mask) for kind, mask in masks.items()]


def _hazard(kind: str, operation: spec.Operation, output: spec.Named, values: Any, mask: Any) -> Hazard:
    chosen = values[mask]
    if not len(chosen):
        worst = 0.0
    elif kind == "underflow":
        worst = float(chosen.abs().min())
    else:
        worst = float(chosen[chosen.abs().argmax()])
    total = int((values != 0).sum()) if kind == "underflow" else values.numel()
    return Hazard(kind, operation.type, operation.name, output.name, output.type.dtype, worst, len(chosen), total)


def _shapes(block: spec.Block) -> list[Hazard]:
    found = []
    for operation in block.operations:
        for output in operation.outputs:
            shape = output.type.shape
            if len(shape) > NEURAL_ENGINE_RANK:
                found.append(Hazard("rank", operation.type, operation.name, output.name, output.type.dtype, len(shape)))
            if operation.type != "const" and max(shape, default=0) > NEURAL_ENGINE_SIZE:
                found.append(Hazard("dimension", operation.type, operation.name, output.name, output.type.dtype, max(shape)))
        for inner in operation.blocks:
            found += _shapes(inner)
    return found


def _infinite_constants(package: Package) -> list[Hazard]:
    import torch

    from edgekit.virtual.coreml.constants import decode

    found = []
    for operation in package.program.block.operations:
        if operation.type == "const" and operation.outputs[0].type.dtype.startswith("float"):
            value = decode(operation.attributes["val"], package)
            infinite = torch.isinf(value)
            if bool(infinite.any()):
                found.append(_hazard("infinite constant", operation, operation.outputs[0], value, infinite))
    return found
