"""A graph with what the rules ask of it: who is constant, which inputs are data, how tensors are quantized."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgekit.graph import Graph, GraphTensor, Operator
from edgekit.opset.table import Table

DATA_INPUTS: dict[str, tuple[int, ...]] = {
    "SPLIT": (1,),
    "TRANSPOSE_CONV": (2,),
    "SELECT": (1, 2),
    "SELECT_V2": (1, 2),
    "FILL": (1,),
    "VAR_HANDLE": (),
    "READ_VARIABLE": (),
    "ASSIGN_VARIABLE": (1,),
}
"""Positions of the data inputs where it is not the first (the others are axes, shapes, weights)."""

LISTS = frozenset(("CONCATENATION", "PACK", "ADD_N", "Concat", "Sum", "Mean", "Max", "Min"))
COMPARISONS = frozenset(("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"))
ARITHMETIC = frozenset(("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "POW", "FLOOR_DIV", "FLOOR_MOD", "ATAN2"))
ONNX_PAIRS = frozenset(("Add", "Sub", "Mul", "Div", "Pow", "MatMul", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"))
PAIRS = COMPARISONS | ARITHMETIC | ONNX_PAIRS | {"LOGICAL_AND", "LOGICAL_OR"}
"""Operators whose first two inputs are both data."""
UNPACKING = frozenset(("DEQUANTIZE", "DENSIFY", "DequantizeLinear", "Cast", "Constant"))
"""Operators that only unpack a constant when they read nothing else: the runtime does it once."""
ONNX_TYPED = frozenset(("Cast", "QuantizeLinear", "DequantizeLinear", "Shape", "ArgMax", "ArgMin", "TopK", "IsNaN")) | {
    "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
}  # fmt: skip
TYPED_OUTPUTS = COMPARISONS | ONNX_TYPED | {"ARG_MAX", "ARG_MIN", "CAST", "QUANTIZE", "DEQUANTIZE", "SHAPE", "DENSIFY", "TOPK_V2", "VAR_HANDLE"}
"""Operators whose outputs are of another type by nature."""


@dataclasses.dataclass(frozen=True)
class View:
    """`static` holds tensors known before the first run: constants, and constants behind DEQUANTIZE or DENSIFY."""

    graph: Graph
    table: Table
    static: frozenset[int]
    level: int = 0

    def tensor(self, operator: Operator, position: int) -> GraphTensor | None:
        """An input, None when absent."""
        index = operator.inputs[position] if position < len(operator.inputs) else -1
        return self.graph.tensors[index] if index >= 0 else None

    def output(self, operator: Operator) -> GraphTensor:
        """The first output."""
        return self.graph.tensors[operator.outputs[0]]

    def data(self, operator: Operator) -> list[GraphTensor]:
        """The tensors that carry data through the operator: inputs first, then outputs."""
        outputs = () if operator.type in TYPED_OUTPUTS else operator.outputs
        return [self.graph.tensors[i] for i in (*data_inputs(operator), *outputs)]

    def is_static(self, operator: Operator, position: int) -> bool:
        """Whether an input is known before the first run; an absent one counts."""
        index = operator.inputs[position] if position < len(operator.inputs) else -1
        return index < 0 or index in self.static


def make(graph: Graph, table: Table, level: int = 0) -> View:
    """The view of `graph` that `table`'s rules are judged on."""
    static = {i for i, tensor in enumerate(graph.tensors) if tensor.constant}
    for operator in graph.operators:
        if operator.type in UNPACKING and set(operator.inputs) <= static:
            static.update(operator.outputs)
    return View(graph, table, frozenset(static), level)


def data_inputs(operator: Operator) -> tuple[int, ...]:
    """Tensor indices of the inputs that carry data."""
    if operator.type in LISTS:
        positions: Any = range(len(operator.inputs))
    else:
        positions = (0, 1) if operator.type in PAIRS else DATA_INPUTS.get(operator.type, (0,))
    return tuple(operator.inputs[p] for p in positions if p < len(operator.inputs) and operator.inputs[p] >= 0)
