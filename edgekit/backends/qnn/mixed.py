"""Which activations get 16 bits: those whose 8 bits cost the outputs most for the bytes, within a share of the plain file's size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgekit.qdq import sensitivity, stream
from edgekit.tensors import Arrays

LEFT = 0.1
"""Noise that the activations in 8 bits may leave, as a share of what the rounded weights make anyway: 0.4 dB of the sum."""

MOST_BYTES = 1.05
"""The context binary may take this much of the one with 8-bit activations throughout."""


def choose(
    floating: Any, rounded: Any, eight: Any, samples: Sequence[Arrays], progress: stream.Progress
) -> tuple[list[frozenset[str]], dict[str, sensitivity.Cost]]:
    """Groups of activations worth 16 bits, most noise a byte first, and what each activation costs in 8.

    `floating` is the float graph, `rounded` the one with rounded weights, `eight` its 8-bit QDQ form.
    """
    costs = sensitivity.measure(rounded, eight, samples, progress)
    weights = sensitivity.noise_of(floating, rounded, samples)
    return sensitivity.enough(costs, LEFT * weights), costs


def fitting(groups: Sequence[frozenset[str]], size_of: Callable[[frozenset[str]], int], most_bytes: int) -> frozenset[str]:
    """As many of the groups, from the first on, as keep `size_of(names)` within `most_bytes`; measured at most five times."""
    low, high = 0, len(groups)  # `low` fits
    for step in range(5):
        count = high if step == 0 else (low + high) // 2
        if count == low:
            break
        if size_of(_union(groups[:count])) <= most_bytes:
            low = count
        else:
            high = count
        if low == high:
            break
    return _union(groups[:low])


def _union(groups: Sequence[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*groups)
