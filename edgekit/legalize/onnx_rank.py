"""Reshape, Transpose, Reshape chains through more dimensions than a target has: axes that stay neighbors are one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgekit.legalize.onnx_rules import Rule
from edgekit.legalize.onnx_values import attribute, constant, shape


def collapse(sizes: Sequence[int], order: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The smallest shape and permutation that move the elements of `sizes` as `order` does: axes of size 1 go, runs that stay together merge.

    Row-major layout: `transpose(reshape(x, sizes), order)` holds its elements in the order of `transpose(reshape(x, shape), permutation)`.
    """
    kept = [axis for axis in order if sizes[axis] != 1]
    real = [axis for axis, size in enumerate(sizes) if size != 1]
    runs: list[list[int]] = []
    for axis in kept:
        if runs and real.index(axis) == real.index(runs[-1][-1]) + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    by_place = sorted(runs)
    merged = []
    for run in by_place:
        size = 1
        for axis in run:
            size *= sizes[axis]
        merged.append(size)
    return tuple(merged), tuple(by_place.index(run) for run in runs)


def _chain(op: Any, x: Any, inner: Any, outer: Any) -> Any:
    wide = op.Reshape(x, inner, _outputs=["wide"])
    return op.Reshape(op.Transpose(wide, _allow_other_attributes=True, _outputs=["turned"]), outer, _outputs=["out"])


def _narrower(op: Any, x: Any, wide: Any, turned: Any, out: Any, **_: Any) -> Any:
    sizes, result = shape(wide), shape(out)
    if sizes is None or result is None or len(sizes) < 6 or len(wide.uses()) > 1 or len(turned.uses()) > 1:
        return None
    order = attribute(turned.producer(), "perm", list(range(len(sizes)))[::-1])
    merged, permutation = collapse(sizes, order)
    if len(merged) > 5:
        return None
    moved = op.Transpose(op.Reshape(x, constant(op, merged or [1], "int64")), perm=list(permutation or (0,)))
    return op.Reshape(moved, constant(op, result, "int64"))


RULES = (
    Rule("rank", "axes that stay neighbors are one axis: no tensor of more than five dimensions is left", ("Reshape", "Transpose"),
         ("Reshape", "Transpose"), (_chain,), _narrower, commutes=False),
)  # fmt: skip
