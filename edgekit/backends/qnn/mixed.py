"""Which activations and weights get 16 bits: those whose 8 bits cost the outputs most for the bytes, within a share of the plain file's size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgekit.qdq import layers, protos, sensitivity

LEFT = 0.02
"""Share of the noise of everything in 8 bits below which what is left is not worth a slower operator."""

MOST_SHARE, LEAST_PAGES = 1.05, 8
"""The context binary may take this much of the one with 8-bit activations throughout, and at least so many pages more: a twentieth of a binary of a
few hundred KB is four pages, and an operator of 16 bits takes a page of its own however small it is.
"""

MORE = 3
"""How many of the next activations are tried where one did not fit any more."""

Names = frozenset[str]


def most_bytes(plain: float) -> float:
    """What a binary may take beside `plain`, the one with 8-bit activations throughout."""
    return max(MOST_SHARE * plain, plain + LEAST_PAGES * sensitivity.PAGE_BYTES)


def choose(costs: Mapping[str, sensitivity.Cost], size_of: Callable[[Names], float], plain: float) -> tuple[Names, ...]:
    """The activations and weights worth 16 bits, most worth first, each with what shares its grid: as many of the best for their bytes as keep
    `size_of(names)` within `most_bytes(plain)`.

    Prices are estimates; how many fit is found by halves, each a binary made and weighed.
    """
    order = sensitivity.worth(costs, LEFT * sum(cost.noise for cost in costs.values()))
    fits, beyond = 0, len(order) + 1
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        fits, beyond = (middle, beyond) if size_of(together(order[:middle])) <= most_bytes(plain) else (fits, middle)
    chosen = order[:fits]
    for more in order[beyond : beyond + MORE]:
        chosen = (*chosen, more) if size_of(together((*chosen, more))) <= most_bytes(plain) else chosen
    return chosen


def together(chosen: Sequence[Names]) -> Names:
    """All names of what was chosen."""
    return frozenset[str]().union(*chosen)


def fitting(chosen: tuple[Names, ...], fits: Callable[[Names], bool]) -> Names:
    """All names of what was chosen, but for the last ones where `fits` says no of them: one less, then two more, four more ...

    Sizes were those of weights rounded to nearest. Rounded by data they may differ by a page, and each trial then is a rounding of its own.
    """
    less = 1
    while chosen and not fits(together(chosen)):
        chosen, less = chosen[:-less], 2 * less
    return together(chosen)


def sums(proto: Any) -> frozenset[str]:
    """Sums that go on beside the layers that read them: in 16 bits, read in 8 by those layers, they gather no rounding on the way, and cost
    an operator of the binary each (0.2 % for nine of them in a network of 50 convolutions).
    """
    read, places = protos.consumers(proto.graph.node), {layer.node for layer in layers.find(proto)}
    made = [node.output[0] for node in proto.graph.node if node.op_type == "Add"]
    return frozenset(name for name in made if 0 < len(places & set(read.get(name, []))) < len(read.get(name, [])))
