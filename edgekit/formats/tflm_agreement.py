"""How TFLM's kernels and LiteRT's reference kernels, which a desktop computes with, compare on an integer `.tflite`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekit.formats import tflite, tflm
from edgekit.graph import Graph
from edgekit.tensors import Array, Arrays, Signature, TensorSpec, quantize

KNOWN = {
    "FULLY_CONNECTED": "LiteRT's multiply by a scale for each channel, or on int16, in double precision, TFLM's in fixed point",
    "SUM": "LiteRT's do not carry what exceeds the type, TFLM's sum in float",
}
"""Operators whose reference kernels are others in LiteRT than in TFLM, and how (`kernels/internal/reference` of both)."""


@dataclasses.dataclass(frozen=True)
class Agreement:
    """On how many inputs, how many of them random, and how many of all values differ by how many steps at most."""

    inputs: int
    random: int
    values: int
    apart: int
    steps: int

    def said(self, graph: Graph) -> str:
        """One sentence, with the operators that are known to differ."""
        if not self.apart:
            return f"TFLM equals LiteRT's reference kernels to the byte on {self.inputs} inputs, {self.random} of them random"
        why = "; ".join(f"{kind}: {reason}" for kind, reason in KNOWN.items() if any(o.type == kind for o in graph.operators))
        far = f"{self.steps} step{'s' if self.steps > 1 else ''}"
        what = f"LiteRT's reference kernels differ from TFLM, which devices are held to, in {self.apart:,} of {self.values:,} values by at most {far}"
        return f"{what} ({why or 'by no operator that is known for it'})"


def compare(path: Path, signature: Signature, samples: Sequence[Arrays], random: int) -> Agreement:
    """Run both on samples of real values and on random integers, in order and with their state. Raises `ConversionError` where one cannot."""
    import numpy as np

    opened, rng = tflite.open(str(path), {}), np.random.default_rng(1)
    reference, micro = tflite.session(opened, reference_kernels=True, keep_state=True), tflm.Interpreter(path, signature)
    stored = [{spec.name: quantize(sample[spec.name], spec) for spec in signature.inputs} for sample in samples]
    if all(np.dtype(spec.dtype).kind in "iu" for spec in signature.inputs):
        stored += [{spec.name: _integers(rng, spec) for spec in signature.inputs} for _ in range(random)]
    names = dict(zip((s.name for s in signature.inputs), (s.name for s in opened.signature.inputs), strict=True))
    values = apart = steps = 0
    for given in stored:
        wanted, found = reference.run({names[name]: array for name, array in given.items()}), micro.run(given)
        for spec, other in zip(signature.outputs, opened.signature.outputs, strict=True):
            gap = np.abs(found[spec.name].astype(np.float64) - wanted[other.name].astype(np.float64).reshape(found[spec.name].shape))
            values, apart, steps = values + gap.size, apart + int((gap > 0).sum()), max(steps, int(gap.max(initial=0)))
    return Agreement(len(stored), len(stored) - len(samples), values, apart, steps)


def _integers(rng: Any, spec: TensorSpec) -> Array:
    import numpy as np

    limits = np.iinfo(spec.dtype)
    made: Array = rng.integers(limits.min, limits.max, spec.shape, dtype=limits.dtype, endpoint=True)
    return made
