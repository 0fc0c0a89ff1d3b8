"""Which activations and weights get 16 bits: those whose 8 bits cost the outputs most for the bytes, within a share of the plain file's size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgekit.qdq import layers, protos, sensitivity

LEFT = 0.02
"""Share of the noise of everything in 8 bits below which what is left is not worth a slower operator."""

MOST_BYTES = 1.05
"""The context binary may take this much of the one with 8-bit activations throughout."""

MORE = 3
"""How many of the next activations are tried where one did not fit any more."""


def choose(costs: Mapping[str, sensitivity.Cost], size_of: Callable[[frozenset[str]], float], plain: float) -> frozenset[str]:
    """The activations and weights worth 16 bits: as many of the best for their bytes as keep `size_of(names)` within `MOST_BYTES` of `plain`.

    Prices are estimates; how many fit is found by halves, each a binary made and weighed.
    """
    order = sensitivity.worth(costs, LEFT * sum(cost.noise for cost in costs.values()))
    most = MOST_BYTES * plain

    def first(count: int) -> frozenset[str]:
        return frozenset[str]().union(*order[:count])

    fits, beyond = 0, len(order) + 1
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        fits, beyond = (middle, beyond) if size_of(first(middle)) <= most else (fits, middle)
    names = first(fits)
    for more in order[beyond : beyond + MORE]:
        names = names | more if size_of(names | more) <= most else names
    return names


def sums(proto: Any) -> frozenset[str]:
    """Sums that go on beside the layers that read them: in 16 bits, read in 8 by those layers, they gather no rounding on the way, and cost
    an operator of the binary each (0.2 % for nine of them in a network of 50 convolutions).
    """
    read, places = protos.consumers(proto.graph.node), {layer.node for layer in layers.find(proto)}
    made = [node.output[0] for node in proto.graph.node if node.op_type == "Add"]
    return frozenset(name for name in made if 0 < len(places & set(read.get(name, []))) < len(read.get(name, [])))
