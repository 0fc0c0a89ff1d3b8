"""A read-only view of an artifact's operators and tensors, the same for every format; opset, budget, trim and inspect read it."""

from __future__ import annotations

from typing import Any

import msgspec


class GraphTensor(msgspec.Struct, frozen=True):
    """One tensor of a graph.

    `shape` has -1 for an unknown size. `scale`/`zero_point` are empty (not quantized), of length one (per tensor) or per channel along
    `axis`. `stored_bytes` is the size of the constant data in the file, 0 for an activation.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    axis: int = 0
    constant: bool = False
    stored_bytes: int = 0


class Operator(msgspec.Struct, frozen=True):
    """One operator. `inputs`/`outputs` index `Graph.tensors`; -1 is an absent optional input. `macs` is 0 where the notion does not apply.

    `name` is the best source location known (an output tensor's or node's name). `custom` marks an operator outside the format's own set.
    """

    index: int
    type: str
    version: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: dict[str, Any] = {}
    macs: int = 0
    custom: bool = False


class Graph(msgspec.Struct, frozen=True):
    """The operators of an artifact in execution order. `inputs`/`outputs` index `tensors`. `file_bytes` is the artifact's size.

    Operators of control-flow bodies are listed after the main graph's, with `subgraph` counting how many graphs the file holds.
    """

    format: str
    tensors: tuple[GraphTensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    file_bytes: int
    subgraphs: int = 1

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return sum(operator.macs for operator in self.operators)

    def constant_bytes(self, operator: Operator) -> int:
        """Bytes of the constants that this operator reads."""
        return sum(self.tensors[i].stored_bytes for i in set(operator.inputs) if i >= 0)
