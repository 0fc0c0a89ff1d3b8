"""Multiply-accumulates of TFLite operators, from shapes alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from edgekit.graph import GraphTensor


def of(kind: str, inputs: Sequence[GraphTensor | None], outputs: Sequence[GraphTensor], attributes: Mapping[str, Any]) -> int:
    """Multiply-accumulates of one run of an operator; an unknown size counts as 1, an operator that is not a product as 0.

    Every product of a weight and an activation counts once, also where padding makes it a product with zero. Recurrent operators count
    their matrices once a time step.
    """
    if len(inputs) < 2 or not outputs:
        return 0
    first, second, out = _shape(inputs[0]), _shape(inputs[1]), _shape(outputs[0])
    if kind in ("CONV_2D", "CONV_3D"):  # [out, h, w, in / groups]; CONV_3D: [d, h, w, in, out]
        return math.prod(out) * math.prod(second[1:] if kind == "CONV_2D" else second[:-1])
    if kind == "DEPTHWISE_CONV_2D":  # [1, h, w, out]
        return math.prod(out) * math.prod(second[1:3])
    if kind == "TRANSPOSE_CONV":  # (output shape, [out, h, w, in], input)
        return math.prod(_shape(inputs[2])[:-1]) * math.prod(second) if len(inputs) > 2 else 0
    if kind == "Convolution2DTransposeBias":
        return math.prod(first[:-1]) * math.prod(second)
    if kind == "FULLY_CONNECTED":
        return math.prod(first) // max(second[-1], 1) * math.prod(second) if second else 0
    if kind == "BATCH_MATMUL":
        return math.prod(out) * (first[-2 if attributes.get("adj_x") else -1] if len(first) > 1 else 0)
    if kind in ("UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN", "SVDF", "LSTM"):
        return _steps(first) * sum(math.prod(_shape(t)) for t in inputs[1:9] if t and t.constant and len(t.shape) == 2)
    return 0


def _steps(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-1])


def _shape(tensor: GraphTensor | None) -> tuple[int, ...]:
    return tuple(max(n, 1) if n < 0 else n for n in tensor.shape) if tensor else ()
