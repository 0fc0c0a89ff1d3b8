"""Gathering moments of what a layer reads, sample by sample, in the memory of a block of columns."""

from __future__ import annotations

import math

from edgekit.quantize.moments import Moments, merge, moments
from edgekit.quantize.sampling import spread
from edgekit.tensors import Array

HELD_OUT = 4
"""One of so many samples judges the rounding of a layer, the others teach it."""

COLUMNS = (3000, 6000)
"""Fewest and most input columns gathered a layer; between them, eight for each weight of an output."""

BLOCK_BYTES = 32_000_000
"""Columns held at once."""

Split = tuple[Moments, Moments]
"""Of the samples that teach, and of those held out (the same where there are too few)."""


def columns_a_sample(k: int, samples: int) -> int:
    """How many input columns of `k` values to look at in each sample."""
    return math.ceil(min(max(8 * k, COLUMNS[0]), COLUMNS[1]) / samples)


def judging(samples: int) -> frozenset[int]:
    """Numbers of the samples that judge: none where there are too few to spare one."""
    return frozenset(spread(samples, samples // HELD_OUT)) if samples >= HELD_OUT else frozenset()


class Gathering:
    """Moments in a stream. Without `second` only means; columns are held until a block of them is worth one matrix product."""

    def __init__(self, samples: int, *, second: bool) -> None:
        self._judges, self._second = judging(samples), second
        self._held: dict[bool, list[tuple[Array, ...]]] = {False: [], True: []}
        self._moments: dict[bool, Moments] = {}

    def add(self, number: int, columns: Array, wanted: Array | None = None) -> None:
        """Columns [groups, positions, k] of sample `number`, and what the float model reads at the same positions."""
        judge = number in self._judges
        self._held[judge].append((columns,) if wanted is None else (columns, wanted))
        if not self._second or sum(array.nbytes for arrays in self._held[judge] for array in arrays) > BLOCK_BYTES:
            self._settle(judge)

    def halves(self) -> Split:
        """Moments of the samples that teach and of those that judge."""
        for judge in (False, True):
            self._settle(judge)
        return self._moments[False], self._moments.get(True, self._moments[False])

    def _settle(self, judge: bool) -> None:
        import numpy as np

        if self._held[judge]:
            joined = [np.concatenate(arrays, axis=1) for arrays in zip(*self._held[judge], strict=True)]
            self._moments[judge] = merge(self._moments.get(judge), moments(*joined, second=self._second))
            self._held[judge] = []
