"""Memory that kernels of CMSIS-NN and ESP-NN ask of TFLM's arena, and its plain kernels do not: what the interpreter here cannot measure.

Sizes are upper bounds of `*_get_buffer_size` (CMSIS-NN, `Source/*/arm_*_get_buffer_sizes_*.c`), as `micro/kernels/cmsis_nn` requests them.
Those of ESP-NN are in `esp_nn_scratch`.
"""

from __future__ import annotations

import math

from edgekit.budget import esp_nn_scratch, memory
from edgekit.graph import Graph, Operator

MVE, DSP, ESP = "cmsis_nn_mve", "cmsis_nn_dsp", "esp_nn"
SOURCES = {MVE: "CMSIS-NN", DSP: "CMSIS-NN", ESP: "ESP-NN"}
"""Whose kernels ask, by delegate."""
_LANES = 124
"""`CH_IN_BLOCK_MVE`: channels that a depthwise layer takes at a time."""
_HANDLE_BYTES = 32
"""Records of one request, in the arena until all is planned or longer."""


def extra_bytes(graph: Graph, delegates: tuple[str, ...]) -> int:
    """Bytes of the arena beyond what plain kernels take: what is kept, and how far scratch buffers lift the most that is alive at once.

    With MVE that is the largest of them: firmware on an emulated Cortex-M55 took up to so much more, whatever was alive beside it.
    """
    found = next((name for name in SOURCES if name in delegates), None)
    operators = memory.main(graph)
    if found is None or not operators:
        return 0
    alive = memory.alive(graph)
    asked = [scratch_bytes(graph, o, found) for o in operators]
    lifted = max(asked) if found == MVE else max(now + more for now, more in zip(alive, asked, strict=True)) - max(alive)
    return lifted + sum(kept_bytes(graph, o, found) for o in operators) + _HANDLE_BYTES * sum(map(bool, asked))


def scratch_bytes(graph: Graph, operator: Operator, delegate: str) -> int:
    """What one operator asks for while it runs."""
    if delegate == ESP:
        asked = esp_nn_scratch.scratch_bytes(graph, operator)
    else:
        asked = _SCRATCH[operator.type](graph, operator, delegate == MVE) if operator.type in _SCRATCH else 0
    return -(-asked // memory.ALIGNMENT_BYTES) * memory.ALIGNMENT_BYTES


def source(delegates: tuple[str, ...]) -> str:
    """Whose kernels they are: the first of `delegates` that is one of `SOURCES`; empty for plain kernels."""
    return next((said for name, said in SOURCES.items() if name in delegates), "")


def kept_bytes(graph: Graph, operator: Operator, delegate: str) -> int:
    """What one operator keeps: with MVE the sums of a dense layer's weights, one of 32 bits for each output channel."""
    if operator.type != "FULLY_CONNECTED" or delegate != MVE or _wide(graph, operator):
        return 0
    return 4 * graph.tensors[operator.outputs[0]].shape[-1]


def _wide(graph: Graph, operator: Operator) -> bool:
    return graph.tensors[operator.outputs[0]].dtype == "int16"


def _column(graph: Graph, operator: Operator, *, mve: bool, source: int = 0) -> int:
    """Columns of a convolution as a matrix: two of 16-bit values, with MVE four of the layer's own, rounded up to registers."""
    rows, columns = graph.tensors[operator.inputs[1]].shape[1:3]
    count = rows * columns * graph.tensors[operator.inputs[source]].shape[-1]
    item = 2 if _wide(graph, operator) else 1
    return 4 * item * -(-count * item // 16) * 16 // item if mve else 4 * -(-count // 4) * 4


def _convolution(graph: Graph, operator: Operator, mve: bool) -> int:
    pointwise = tuple(graph.tensors[operator.inputs[1]].shape[1:3]) == (1, 1) and not _wide(graph, operator)
    return 0 if pointwise else _column(graph, operator, mve=mve)


def _depthwise(graph: Graph, operator: Operator, mve: bool) -> int:
    rows, columns, made = graph.tensors[operator.inputs[1]].shape[1:4]
    channels = graph.tensors[operator.inputs[0]].shape[-1]
    if _wide(graph, operator):
        return (8 if mve else 2) * channels * rows * columns + 8
    if mve and channels == 1:
        return _column(graph, operator, mve=True) + made * rows * columns
    if mve:
        return 4 * _LANES * rows * columns
    return 0 if (rows, columns) == (3, 3) else 2 * channels * rows * columns


def _pool(graph: Graph, operator: Operator, mve: bool) -> int:
    return 0 if mve else 4 * graph.tensors[operator.inputs[0]].shape[-1]


def _transposed(graph: Graph, operator: Operator, mve: bool) -> int:
    """The larger of its two ways; what the plain kernel asks for already, 32 bits for each output, is no extra."""
    filters, given = graph.tensors[operator.inputs[1]].shape, graph.tensors[operator.inputs[2]].shape
    made = graph.tensors[operator.outputs[0]].shape
    reversed_way = _column(graph, operator, mve=mve, source=2) + math.prod(filters[1:3]) * given[-1] * made[-1]
    return max(0, reversed_way - 4 * math.prod(made))


def _matmul(graph: Graph, operator: Operator, mve: bool) -> int:
    return 4 * graph.tensors[operator.outputs[0]].shape[-1] if mve else 0


_SCRATCH = {
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _depthwise,
    "AVERAGE_POOL_2D": _pool,
    "TRANSPOSE_CONV": _transposed,
    "BATCH_MATMUL": _matmul,
}
