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
from edgekit.virtual.coreml.constants import decode
from edgekit.virtual.coreml.package import Package
from edgekit.virtual.coreml.plan import Plan
from edgekit.virtual.coreml.session import Session

HALF_MAX = 65504.0
HALF_SMALLEST_NORMAL = 2.0**-14
NEURAL_ENGINE_RANK = 5
NEURAL_ENGINE_SIZE = 16384
CANCELLED = 2.0**-6
"""A sum or difference is reported when it is that much smaller than what it is made of, in root mean square: of 11 digits 5 are left."""
PHASE = 32.0
"""Half precision's steps are 1/32 from here on."""
UNDERFLOW_SHARE = 0.01
"""An operator is reported when more than this share of its non-zero values is below the smallest normal number."""

Size = tuple[float, float]

WORDS = {
    "overflow": "finite values above 65504, which half precision stores as infinity",
    "infinity": "infinite values",
    "nan": "values that are not numbers",
    "underflow": "values below the smallest normal half, which lose digits or become 0",
    "cancellation": "a small difference of large values, whose digits half precision has lost before",
    "phase": "an angle so large that half precision rounds it by more than a hundredth",
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


def hazards(package: Package, samples: Iterable[Arrays], plan: Plan | None = None, underflow_share: float = UNDERFLOW_SHARE) -> tuple[Hazard, ...]:
    """What a program's shapes, constants and values on `samples` put at risk, in the program's order, one finding per kind and operator result.

    `plan` is run in place of the package's own: the same operators with other constants. An underflow is found from `underflow_share` on.
    """
    import numpy as np
    import torch

    found: dict[tuple[str, str], Hazard] = {}
    for item in (*_shapes(package.program.block), *_infinite_constants(package)):
        found[item.kind, item.output] = item

    sizes: dict[str, Size] = {}

    def tap(operation: spec.Operation, output: spec.Named, computed: Any, stored: Any) -> None:
        del stored
        for item in (*_values(operation, output, computed), *_digits(operation, output, computed, sizes)):
            earlier = found.get((item.kind, item.output))
            found[item.kind, item.output] = item if earlier is None else _merged(earlier, item)

    session = Session(package, tap, plan)
    for sample in samples:
        sizes.clear()
        sizes |= {name: _size(torch.from_numpy(np.asarray(value, np.float64))) for name, value in sample.items()}
        session.run(sample)
    merged = [item for item in found.values() if item.kind != "underflow" or item.count > underflow_share * item.total]
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


def _digits(operation: spec.Operation, output: spec.Named, computed: Any, seen: dict[str, Size]) -> list[Hazard]:
    """Findings of results that need more digits of their operands than half precision has; `seen` are sizes by name, the result's is added."""
    import torch

    if not isinstance(computed, torch.Tensor) or not computed.is_floating_point():
        return []
    read = [seen[name] for bound in operation.inputs.values() for name in bound if isinstance(name, str) and name in seen]
    seen[output.name] = made = _size(computed)
    usual, largest = (max((size[i] for size in read), default=0.0) for i in (0, 1))
    kind, value = "", largest
    if operation.type in ("add", "sub") and 0 < made[0] < CANCELLED * usual < float("inf"):
        kind, value = "cancellation", made[0]
    elif operation.type in ("sin", "cos", "tan") and PHASE < largest < float("inf"):
        kind = "phase"
    total = computed.numel()
    return [Hazard(kind, operation.type, operation.name, output.name, output.type.dtype, value, total, total)] if kind else []


def _size(values: Any) -> Size:
    """Root mean square and largest magnitude."""
    import torch

    if not values.numel():
        return 0.0, 0.0
    norms = [float(torch.linalg.vector_norm(values, order, dtype=torch.float64)) for order in (2, float("inf"))]
    return norms[0] / float(values.numel()) ** 0.5, norms[1]


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

    found = []
    for operation in package.program.block.operations:
        if operation.type == "const" and operation.outputs[0].type.dtype.startswith("float"):
            value = decode(operation.attributes["val"], package)
            infinite = torch.isinf(value)
            if bool(infinite.any()):
                found.append(_hazard("infinite constant", operation, operation.outputs[0], value, infinite))
    return found
