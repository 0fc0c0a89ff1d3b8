"""Which activations get 16 bits: those whose 8 bits cost the outputs most for the bytes, within a share of the plain file's size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgekit.qdq import sensitivity
from edgekit.tensors import Arrays

LEFT = 0.1
"""Noise that the activations in 8 bits may leave, as a share of what the rounded weights make anyway: 0.4 dB of the sum."""

MOST_BYTES = 1.05
"""The context binary may take this much of the one with 8-bit activations throughout."""

SHARES = (1.8, 1.3, 1.15, 1.08, 1.0, 0.7, 0.4)
"""Budgets to try, as shares of the bytes allowed: prices are estimates, and activations beside each other share the layer between them."""


def choose(
    floating: Any, rounded: Any, costs: Mapping[str, sensitivity.Cost], samples: Sequence[Arrays], size_of: Callable[[frozenset[str]], int]
) -> frozenset[str]:
    """The activations worth 16 bits: the most that keep `size_of(names)` within `MOST_BYTES` of `size_of(none)`.

    `floating` is the float graph, `rounded` the one with rounded weights, whose noise says how much more is worth avoiding.
    """
    plain, least = size_of(frozenset()), LEFT * sensitivity.noise_of(floating, rounded, samples)
    tried = set[frozenset[str]]()
    for share in SHARES:
        names = sensitivity.worth(costs, least, share * (MOST_BYTES - 1) * plain)
        if names not in tried and size_of(names) <= MOST_BYTES * plain:
            return names
        tried.add(names)
    return frozenset()
