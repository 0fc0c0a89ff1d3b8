"""Which range an activation's integer grid covers: everything seen, or less where clipping a few values buys resolution for the rest."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from edgekit.quantize.grid import TINY, affine
from edgekit.tensors import Array

Method = Literal["minmax", "percentile", "mse", "entropy"]
Asked = Literal["auto"] | Method

BINS = 2048
TAIL = 5e-5
"""Share of the values that `percentile` leaves out on either side: 99.99 % stay."""
SHRINK = (1.0, 0.97, 0.94, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)
"""Shares of the seen range that the searches try, on either side."""


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts of real values in equal bins of [low, high], float64 [bins]; `low` <= 0 <= `high` are the true extremes."""

    low: float
    high: float
    counts: Array

    @property
    def centers(self) -> Array:
        """The middle of each bin."""
        import numpy as np

        width = (self.high - self.low) / len(self.counts)
        return self.low + width * (np.arange(len(self.counts)) + 0.5)


def method(asked: Asked) -> Method:
    """The method asked for; `auto` is the least squared error where none is tried against another."""
    return "mse" if asked == "auto" else asked


def histogram(values: Array, low: float, high: float, bins: int = BINS) -> Histogram:
    """Histogram of (a sample of) a tensor whose true extremes are `low` and `high`; any shape. Histograms of one range add by `merge`."""
    import numpy as np

    low, high = min(low, 0.0), max(high, 0.0)
    if high - low < TINY:
        return Histogram(low, high, np.zeros(bins))
    return Histogram(low, high, np.histogram(values, bins=bins, range=(low, high))[0].astype(np.float64))


def merge(first: Histogram, second: Histogram) -> Histogram:
    """Both together. Raises `ValueError` when their bins differ."""
    if (first.low, first.high, len(first.counts)) != (second.low, second.high, len(second.counts)):
        raise ValueError("histograms of different bins cannot be merged")
    return Histogram(first.low, first.high, first.counts + second.counts)


def choose(seen: Histogram, method: Method = "mse", *, bits: int = 8, symmetric: bool = False) -> tuple[float, float]:
    """The range (low, high) for a grid of `bits`. Never wider than what was seen; (0, 0) for a tensor that is always zero.

    `percentile` leaves out `TAIL` on either side; `mse` minimizes the mean squared error of clipping and rounding
    (Sung et al. 2015, «Resiliency of Deep Neural Networks under Quantization»); `entropy` minimizes the Kullback-Leibler divergence
    (Migacz 2017, «8-bit Inference with TensorRT»). Raises `ValueError` for an unknown method.
    """
    if method not in get_args(Method):
        raise ValueError(f"unknown range method {method!r}")
    if seen.counts.sum() == 0 or method == "minmax":
        return seen.low, seen.high
    if method == "percentile":
        return _percentile(seen)
    loss = squared_error if method == "mse" else divergence
    return min(_trials(seen, symmetric), key=lambda trial: loss(seen, *trial, bits=bits, symmetric=symmetric))


def squared_error(seen: Histogram, low: float, high: float, *, bits: int = 8, symmetric: bool = False) -> float:
    """Expected squared error of a value: scale^2 / 12 inside the range, the distance to its end beyond it."""
    import numpy as np

    grid = affine(low, high, bits=bits, symmetric=symmetric)
    first, last = ((end - grid.zero_point) * grid.scale for end in (grid.lowest, grid.highest))
    beyond = np.maximum(seen.centers - last, 0) + np.maximum(first - seen.centers, 0)
    return float((seen.counts * np.where(beyond > 0, beyond**2, grid.scale**2 / 12)).sum() / seen.counts.sum())


def divergence(seen: Histogram, low: float, high: float, *, bits: int = 8, symmetric: bool = False) -> float:
    """Kullback-Leibler divergence of the clipped distribution from itself spread over the grid's levels."""
    import numpy as np

    grid = affine(low, high, bits=bits, symmetric=symmetric)
    levels = np.clip(np.rint(seen.centers / grid.scale) + grid.zero_point, grid.lowest, grid.highest).astype(np.int64) - grid.lowest
    filled = seen.counts > 0
    total = np.bincount(levels, seen.counts, grid.highest - grid.lowest + 1)
    inside = (seen.centers >= low) & (seen.centers <= high)
    share = np.bincount(levels, filled & inside, grid.highest - grid.lowest + 1)
    kept = np.where(inside, seen.counts, 0.0)
    spread = np.where(filled & inside, np.bincount(levels, kept, len(total))[levels] / np.maximum(share[levels], 1), 0.0)
    reference = np.where(filled & inside, kept, 0.0)
    edge = np.flatnonzero(filled & inside)
    if len(edge) == 0:
        return float("inf")
    reference[edge[0]] += seen.counts[seen.centers < low].sum()
    reference[edge[-1]] += seen.counts[seen.centers > high].sum()
    p, q = reference / reference.sum(), spread / max(spread.sum(), TINY)
    used = p > 0
    return float((p[used] * np.log(p[used] / np.maximum(q[used], TINY))).sum())


def _percentile(seen: Histogram) -> tuple[float, float]:
    import numpy as np

    share = np.cumsum(seen.counts) / seen.counts.sum()
    edges = seen.low + (seen.high - seen.low) * np.arange(len(seen.counts) + 1) / len(seen.counts)
    low, high = edges[np.searchsorted(share, TAIL, side="right")], edges[np.searchsorted(share, 1 - TAIL) + 1]
    return min(float(low), 0.0), max(float(high), 0.0)


def _trials(seen: Histogram, symmetric: bool) -> list[tuple[float, float]]:
    if symmetric:
        bound = max(-seen.low, seen.high)
        return [(-bound * share, bound * share) for share in SHRINK]
    lows = [seen.low * share for share in SHRINK] if seen.low < 0 else [0.0]
    highs = [seen.high * share for share in SHRINK] if seen.high > 0 else [0.0]
    return [(low, high) for low in lows for high in highs]
