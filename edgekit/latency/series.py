"""The few statistics that latency needs, over one-dimensional float64 series. Formulas name their source."""

from __future__ import annotations

import math

from edgekit.tensors import Array

BLOCKS = 64  # the trend is tested on block medians: cheap, and free of short-range correlation
DRAWS = 4000
MODES_EXPLAIN = 0.82  # share of the variance that two modes must explain; one normal mode cut in two explains 0.64, a uniform one 0.75
LEAST_MODE = 0.15  # fewer slow samples than this are interruptions, which percentiles show


def effective_size(values: Array) -> float:
    """How many independent samples the series is worth: n (1 - r) / (1 + r), r the lag-1 rank correlation, never above n.

    Source: Bayley & Hammersley 1946, for a first-order autoregressive series. Ranks keep one outlier from hiding the correlation.
    """
    import numpy as np

    n = len(values)
    if n < 8:
        return float(n)
    centered = ranks(values) - (n + 1) / 2
    power = float(np.vdot(centered, centered))
    r = float(np.vdot(centered[1:], centered[:-1])) / power if power else 0.0
    # a correlation within its own sampling error (2 / sqrt n) is none
    r = 0.0 if r < 2 / math.sqrt(n) else min(r, 0.99)
    return max(2.0, n * (1 - r) / (1 + r))


def median_draws(values: Array, size: float, seed: int) -> Array:
    """`DRAWS` bootstrap medians of the series, as if it held `size` independent samples.

    The median of a resample is the order statistic at a Beta((size + 1) / 2, (size + 1) / 2) quantile (Maritz & Jarrett 1978), so no resample
    needs to be drawn.
    """
    import numpy as np

    shape = (size + 1) / 2
    where = np.random.RandomState(seed).beta(shape, shape, DRAWS)
    ordered = np.sort(values)
    medians: Array = np.interp(where * len(ordered) - 0.5, np.arange(len(ordered)), ordered)
    return medians


def interval(draws: Array, confidence: float) -> tuple[float, float]:
    """Percentile bootstrap interval (Efron & Tibshirani 1993, chapter 13)."""
    import numpy as np

    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, (tail, 1 - tail))
    return float(low), float(high)


def trend(values: Array) -> tuple[float, float]:
    """Change from the first to the last sample (Theil-Sen slope; Sen 1968) and the two-sided p-value of a monotone trend.

    Mann-Kendall's S with its variance under ties and the continuity correction (Kendall 1975), on at most `BLOCKS` block medians.
    """
    import numpy as np

    n = len(values)
    medians = values if n <= BLOCKS else np.array([np.median(block) for block in np.array_split(values, BLOCKS)])
    m = len(medians)
    if m < 4:
        return 0.0, 1.0
    i, j = np.triu_indices(m, 1)
    rises = medians[j] - medians[i]
    s = float(np.sign(rises).sum())
    ties = _ties(medians)
    variance = (m * (m - 1) * (2 * m + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    p = _two_sided(max(0.0, abs(s) - 1) / math.sqrt(variance)) if variance > 0 else 1.0
    return float(np.median(rises / (j - i))) * (m - 1), p


def mann_whitney(first: Array, second: Array, sizes: tuple[float, float]) -> float:
    """Two-sided p-value that neither series tends to be larger: normal approximation with ties (Mann & Whitney 1947; Lehmann 1975).

    `sizes` are the effective sizes; the score is scaled to them, so that a correlated series does not count for more than it is worth.
    """
    import numpy as np

    n, m = len(first), len(second)
    both = np.concatenate([first, second])
    u = float(ranks(both)[:n].sum()) - n * (n + 1) / 2
    ties = _ties(both)
    total = n + m
    variance = n * m / 12 * (total + 1 - float((ties**3 - ties).sum()) / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    worth = math.sqrt((sizes[0] * sizes[1] / (sizes[0] + sizes[1])) / (n * m / total))
    return _two_sided(max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance) * worth)


def two_modes(values: Array) -> tuple[tuple[float, ...], float]:
    """The centers of two modes and the smaller one's share, or nothing when one mode explains the series.

    The cut that maximizes the variance between its sides (Otsu 1979), on the series without its top and bottom 2 %. There are two modes when
    that is at least 0.82 of the whole variance and the smaller side holds at least 15 %.
    """
    import numpy as np

    trim = len(values) // 50
    ordered = np.sort(values)[trim : len(values) - trim]
    n = len(ordered)
    if n < 20 or ordered[0] == ordered[-1]:
        return (), 0.0
    below = np.arange(1, n) / n
    sums = np.cumsum(ordered - ordered.mean())[:-1] / n
    between = sums**2 / (below * (1 - below))
    between[(below < LEAST_MODE) | (below > 1 - LEAST_MODE)] = 0
    cut = int(between.argmax()) + 1
    if between.max() < MODES_EXPLAIN * ordered.var():
        return (), 0.0
    return (float(np.median(ordered[:cut])), float(np.median(ordered[cut:]))), min(cut, n - cut) / n


def ranks(values: Array) -> Array:
    """Ranks from one, the mean rank for ties."""
    import numpy as np

    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def _ties(values: Array) -> Array:
    import numpy as np

    return np.unique(values, return_counts=True)[1].astype(np.float64)


def _two_sided(z: float) -> float:
    return math.erfc(z / math.sqrt(2))
