"""When each activation is alive, and the operator at which most bytes are alive at once. Pure."""

from __future__ import annotations

import msgspec

from edgekit.graph import Graph, GraphTensor, Operator

ITEM_BYTES = {"int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "float16": 2, "int32": 4, "uint32": 4, "float32": 4, "int64": 8}
ALIGNMENT_BYTES = 16
"""TFLM's allocator aligns every buffer so (`MicroArenaBufferAlignment`)."""


class Peak(msgspec.Struct, frozen=True):
    """The operator at which most activation bytes are alive: no plan can need less. `tensors` are those alive there, largest first."""

    operator: int
    type: str
    name: str
    live_bytes: int
    tensors: tuple[tuple[str, int], ...]

    @property
    def message(self) -> str:
        """One sentence: where, how much, and of what."""
        largest = ", ".join(f"{name} {size:,} bytes" for name, size in self.tensors[:3])
        return f"{self.type} ({self.name}) needs the most: {self.live_bytes:,} bytes of activations are alive there ({largest})"

    @property
    def suggestion(self) -> str:
        """What would lower it."""
        return "a smaller input, a larger stride in the layers before it, or fewer channels there: the tensors named count"


def peak(graph: Graph) -> Peak | None:
    """The peak of the main graph; None for a graph without operators."""
    operators, most = main(graph), alive(graph)
    if not operators:
        return None
    place = most.index(max(most))
    operator, spans = operators[place], _spans(graph, operators)
    rows = [(graph.tensors[i].name, size(graph.tensors[i])) for i, (first, last) in spans.items() if first <= place <= last]
    return Peak(operator.index, operator.type, operator.name, most[place], tuple(sorted(rows, key=lambda row: (-row[1], row[0]))))


def alive(graph: Graph) -> list[int]:
    """Bytes of activations that are alive at each operator of the main graph."""
    operators = main(graph)
    spans = _spans(graph, operators)
    return [sum(size(graph.tensors[i]) for i, (first, last) in spans.items() if first <= place <= last) for place in range(len(operators))]


def size(tensor: GraphTensor) -> int:
    """Bytes of an activation, rounded up to the alignment."""
    count = ITEM_BYTES.get(tensor.dtype, 1)
    for n in tensor.shape:
        count *= max(n, 1)
    return -(-count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def main(graph: Graph) -> list[Operator]:
    """The operators of the main graph, in order."""
    return [operator for operator in graph.operators if not operator.attributes.get("subgraph")]


def _spans(graph: Graph, operators: list[Operator]) -> dict[int, tuple[int, int]]:
    """First and last operator (by place) at which each activation is alive; inputs from the start, outputs to the end."""
    spans = dict.fromkeys(graph.inputs, (0, 0))
    for place, operator in enumerate(operators):
        for i in (*operator.inputs, *operator.outputs):
            if i >= 0 and not graph.tensors[i].constant and graph.tensors[i].dtype in ITEM_BYTES:
                spans[i] = (spans.get(i, (place, place))[0], place)
    return spans | {i: (spans[i][0], len(operators) - 1) for i in graph.outputs if i in spans}
