"""Values that half precision cannot hold: found in what a float32 model computes inside. Numpy only, for every backend that computes in fp16."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from edgekit.tensors import Array

LARGEST = 65504.0
"""The largest finite half (IEEE 754 binary16)."""

SMALLEST = 2.0**-24
"""The smallest half above zero; half of it and less becomes zero."""

VANISHING = 0.5
"""Share of an activation's non-zero values below `SMALLEST` from which it counts as lost."""


class Hazard(msgspec.Struct, frozen=True):
    """An activation that half precision breaks. `kind` is `overflow` (`value` is the largest magnitude) or `underflow` (the typical one)."""

    name: str
    kind: str
    value: float

    def __str__(self) -> str:
        if self.kind == "overflow":
            return f"{self.name} reaches {self.value:.4g}, and half precision ends at {LARGEST:.0f}"
        return f"{self.name} is about {self.value:.2g}, and half precision has nothing above zero below {SMALLEST:.2g}"


def hazards(samples: Iterable[Mapping[str, Array]]) -> tuple[Hazard, ...]:
    """What breaks among float32 activations by name, over samples; in the order of the first sample.

    Infinities and the masks of attention (-3.4e38) are meant to be larger than everything, and stay so: they are no hazard.
    """
    import numpy as np

    largest: dict[str, float] = {}
    tiny: dict[str, list[int]] = {}
    typical: dict[str, float] = {}
    for sample in samples:
        for name, values in sample.items():
            size = np.abs(values[np.isfinite(values)])
            size = size[(size > 0) & (size < 3e38)]
            largest[name] = max(largest.get(name, 0.0), float(size.max(initial=0)))
            counts = tiny.setdefault(name, [0, 0])
            counts[0] += int((size <= SMALLEST / 2).sum())
            counts[1] += size.size
            typical[name] = float(np.median(size)) if size.size else typical.get(name, 0.0)
    found = [Hazard(name, "overflow", value) for name, value in largest.items() if value > LARGEST]
    lost = [Hazard(n, "underflow", typical[n]) for n, (below, of) in tiny.items() if of and below / of >= VANISHING]
    return tuple(sorted((*found, *lost), key=lambda hazard: list(largest).index(hazard.name)))
