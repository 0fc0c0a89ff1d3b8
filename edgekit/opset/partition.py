"""How a runtime cuts a graph into parts for a delegate.

The cut is LiteRT's (`tflite/core/subgraph` and `graph_info`, PartitionGraphIntoIndependentNodeSubsets): operators are taken in execution order
as soon as their inputs are ready, all of one kind (delegated or not) before the other kind has its turn.
"""

from __future__ import annotations

from collections.abc import Collection

from edgekit.graph import Graph, Operator


def parts(graph: Graph, taken: Collection[int]) -> tuple[tuple[int, ...], ...]:
    """Operator indices of each delegated part. A control-flow body is its own graph and has its own parts."""
    by_graph: dict[int, list[Operator]] = {}
    for operator in graph.operators:
        by_graph.setdefault(operator.attributes.get("subgraph", 0), []).append(operator)
    return tuple(part for operators in by_graph.values() for part in _parts(operators, frozenset(taken)))


def beyond(graph: Graph, taken: Collection[int], limit: int) -> frozenset[int]:
    """Delegated operators outside the `limit` largest parts."""
    largest_first = sorted(parts(graph, taken), key=len, reverse=True)
    return frozenset(index for part in largest_first[limit:] for index in part)


def _parts(operators: list[Operator], taken: frozenset[int]) -> list[tuple[int, ...]]:
    produced = {i for o in operators for i in o.outputs}
    waiting, found = list(operators), list[tuple[int, ...]]()
    while waiting:
        part: list[int] = []
        kind: bool | None = None
        progress = True
        while progress:
            progress = False
            for operator in tuple(waiting):
                mine = operator.index in taken
                if produced.intersection(operator.inputs) or kind not in (None, mine):
                    continue
                kind, progress = mine, True
                part.append(operator.index)
                waiting.remove(operator)
                produced.difference_update(operator.outputs)
        if not part:  # a cycle: nothing more can be ordered
            return found
        if kind:
            found.append(tuple(part))
    return found
