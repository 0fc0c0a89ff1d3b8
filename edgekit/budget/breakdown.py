"""Where a model's bytes are: by layer, by tensor, by type; and what became of them when it was quantized. Pure."""

from __future__ import annotations

import math

import msgspec

from edgekit.graph import Graph, Operator

PASS_THROUGH = frozenset(("DEQUANTIZE", "DENSIFY"))
"""Operators that only unpack a constant: its bytes belong to the layer that uses it."""


class LayerRow(msgspec.Struct, frozen=True):
    """Constants of one layer, as a rectangle of a treemap. `share` is of the whole file. Operator -1 is the file's own structure."""

    operator: int
    type: str
    name: str
    constant_bytes: int
    share: float
    macs: int = 0


class TensorRow(msgspec.Struct, frozen=True):
    """One constant: real bytes in the file, and the bits each element takes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    stored_bytes: int

    @property
    def bits_per_element(self) -> float:
        """8.0 for int8; less where the constant is sparse."""
        return self.stored_bytes * 8 / max(math.prod(self.shape), 1)


class Shrinkage(msgspec.Struct, frozen=True):
    """A file before and after quantization. `still_float` are constants that kept float32, largest first."""

    before_bytes: int
    after_bytes: int
    still_float: tuple[TensorRow, ...]
    structure_bytes: int

    @property
    def shrank(self) -> bool:
        """Whether the file became at least a tenth smaller."""
        return self.after_bytes < 0.9 * self.before_bytes

    @property
    def reason(self) -> str:
        """Why it did not shrink, in one sentence; empty when it did."""
        if self.shrank:
            return ""
        kept = sum(row.stored_bytes for row in self.still_float)
        return (
            f"{self.after_bytes:,} bytes after, {self.before_bytes:,} before: {kept:,} bytes of constants are still float32 "
            f"({len(self.still_float)} tensors), and {self.structure_bytes:,} bytes are the file's structure"
        )


def layers(graph: Graph) -> tuple[LayerRow, ...]:
    """Constant bytes by layer, largest first, then the file's structure. A constant that several layers share counts with the first."""
    users = _users(graph)
    counted: dict[int, int] = {}
    for index, tensor in enumerate(graph.tensors):
        if tensor.stored_bytes and index in users:
            owner = _owner(graph, users, index)
            counted[owner.index] = counted.get(owner.index, 0) + tensor.stored_bytes
    total = max(graph.file_bytes, 1)
    rows = [
        LayerRow(o.index, o.type, o.name, counted[o.index], counted[o.index] / total, o.macs) for o in graph.operators if counted.get(o.index)
    ]
    rest = max(graph.file_bytes - sum(counted.values()), 0)
    return (*sorted(rows, key=lambda row: (-row.constant_bytes, row.operator)), LayerRow(-1, "", "structure", rest, rest / total))


def tensors(graph: Graph) -> tuple[TensorRow, ...]:
    """Every constant with its real bytes, largest first."""
    rows = [TensorRow(t.name, t.shape, t.dtype, t.stored_bytes) for t in graph.tensors if t.stored_bytes]
    return tuple(sorted(rows, key=lambda row: (-row.stored_bytes, row.name)))


def bytes_by_type(graph: Graph) -> dict[str, int]:
    """Constant bytes by stored type, largest first."""
    found: dict[str, int] = {}
    for tensor in graph.tensors:
        if tensor.stored_bytes:
            found[tensor.dtype] = found.get(tensor.dtype, 0) + tensor.stored_bytes
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def shrinkage(before: Graph, after: Graph) -> Shrinkage:
    """What quantizing did to the bytes; small nets and constants kept in float may not shrink at all."""
    kept = tuple(row for row in tensors(after) if row.dtype == "float32")
    constants = sum(t.stored_bytes for t in after.tensors)
    return Shrinkage(before.file_bytes, after.file_bytes, kept, max(after.file_bytes - constants, 0))


def _users(graph: Graph) -> dict[int, Operator]:
    """The first operator that reads each tensor."""
    found: dict[int, Operator] = {}
    for operator in graph.operators:
        for index in operator.inputs:
            found.setdefault(index, operator)
    return found


def _owner(graph: Graph, users: dict[int, Operator], index: int) -> Operator:
    owner = users[index]
    for _ in range(len(graph.operators)):  # a chain cannot be longer than the graph; a cycle ends here too
        following = users.get(owner.outputs[0]) if owner.type in PASS_THROUGH and owner.outputs else None
        if following is None:
            return owner
        owner = following
    return owner
