"""Sparse TFLite constants made dense.

The format (LiteRT `schema.fbs`, SparsityParameters): dimensions are stored in `traversalOrder`; those past the tensor's rank are blocks of the
dimensions in `blockMap`. Each level is either dense (a size) or compressed (segments and indices, CSR).
"""

from __future__ import annotations

import math
from typing import Any

from edgekit.tensors import Array

DENSE = 0


def dense(values: Array, shape: list[int], sparsity: Any) -> Array:
    """A dense array of `shape` from the stored `values`. Raises `ValueError` where the description contradicts itself."""
    import numpy as np

    order = [int(d) for d in sparsity.traversalOrder]
    blocked = [int(d) for d in (sparsity.blockMap if sparsity.blockMap is not None else [])]
    coordinates = _coordinates(sparsity.dimMetadata, math.prod(shape), len(values))
    if sorted(order) != list(range(len(shape) + len(blocked))) or len(coordinates) != len(order) or any(not 0 <= d < len(shape) for d in blocked):
        raise ValueError("a sparse tensor's traversal order does not fit its rank")
    level_of = {dimension: level for level, dimension in enumerate(order)}
    block_size = {len(shape) + k: sparsity.dimMetadata[level_of[len(shape) + k]].denseSize for k in range(len(blocked))}
    index = [coordinates[level_of[d]] for d in range(len(shape))]
    for k, dimension in enumerate(blocked):
        block = len(shape) + k
        index[dimension] = index[dimension] * block_size[block] + coordinates[level_of[block]]
    out = np.zeros(shape, values.dtype)
    out[tuple(index)] = values
    return out


def _coordinates(levels: Any, limit: int, count: int) -> list[Array]:
    """The coordinate of every stored value at every level, level by level: each position of a level is repeated once per child."""
    import numpy as np

    found: list[Array] = []
    positions = 1
    for level in levels:
        if level.format == DENSE:
            children = np.full(positions, level.denseSize, np.int64)
            mine = np.tile(np.arange(level.denseSize, dtype=np.int64), positions) if positions * level.denseSize <= limit else None
        else:
            segments = np.asarray(level.arraySegments.values, np.int64)
            children = np.diff(segments)
            mine = np.asarray(level.arrayIndices.values, np.int64)
        if mine is None or len(children) != positions or (children < 0).any() or children.sum() != len(mine):
            raise ValueError("a sparse tensor's segments do not fit together")
        found = [np.repeat(earlier, children) for earlier in found] + [mine]
        positions = len(mine)
    if positions != count or any((c < 0).any() for c in found):
        raise ValueError(f"a sparse tensor describes {positions} values but stores {count}")
    return found
