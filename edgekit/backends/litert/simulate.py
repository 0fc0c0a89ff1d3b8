"""What 8-bit activations alone cost: the float model with its activations rounded, operator by operator, its weights as they are."""

from __future__ import annotations

import math
from collections.abc import Mapping

from edgekit.backends.litert import signatures
from edgekit.backends.litert.source import Source
from edgekit.backends.litert.stream import Stream
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize.grid import Affine
from edgekit.tensors import Array

LEAST_DB, MOST_DB = -20.0, 120.0
"""Bounds of one sample's level: beyond them it is lost, or exact."""

SAMPLES = 8
"""Judging samples that are run: two simulations on the same ones differ by far less than two samples do."""


def grids(content: bytes) -> dict[str, Affine]:
    """The grids of the 8-bit activations of a quantized file, by the names that they have in the float model.

    They are not those asked for where the format shares one between an operator's input and output, or fixes it (pools, joins, sigmoid).
    """
    model = flatbuffer.load(content)
    int8, found = flatbuffer.schema().TensorType.INT8, dict[str, Affine]()
    for tensor in model.subgraphs[0].tensors:
        scaled = tensor.quantization is not None and tensor.quantization.scale is not None and len(tensor.quantization.scale) == 1
        if tensor.type == int8 and scaled and flatbuffer.constant(model, tensor) is None:
            name = flatbuffer.text(tensor.name).removesuffix("_quantized").removesuffix("_requantized")
            found[name] = Affine(float(tensor.quantization.scale[0]), int(tensor.quantization.zeroPoint[0]), -128, 127)
    return found


def sqnr_db(base: Source, rounded_to: Mapping[str, Affine]) -> float:
    """SQNR in dB, averaged over outputs, of `base` with its activations on the grids `rounded_to`; deterministic."""
    model, judges = base.fresh(), base.judges[:SAMPLES]
    _, outputs = signatures.edges(model, base.model.signature)
    flow = Stream(base, model, rounded_to, judges)
    try:
        flow.advance(len(model.subgraphs[0].operators))
        found = [list(flow.values(index)) for index in outputs]
    finally:
        flow.close()
    names = [spec.name for spec in base.model.signature.outputs]
    return level_db([[(row[name], made) for row, made in zip(base.reference, rows, strict=False)] for name, rows in zip(names, found, strict=True)])


def level_db(outputs: list[list[tuple[Array, Array]]]) -> float:
    """Signal to noise in dB: of the mean over outputs of noise by signal, each output's taken as the mean in dB over its (wanted, given) rows.

    In dB, so that one sample of extreme values does not decide alone. Infinite without noise.
    """
    import numpy as np

    levels, noisy = [], False
    for rows in outputs:
        found = []
        for wanted, given in rows:
            real = wanted.astype(np.float64)
            lost, signal = float(((given - real) ** 2).sum()), float((real**2).sum())
            if lost != lost:
                return float("-inf")
            noisy |= lost > 0
            found.append(min(max(10 * math.log10(max(signal, 1e-30) / max(lost, 1e-30)), LEAST_DB), MOST_DB))
        levels.append(sum(found) / len(found))
    return -10 * math.log10(sum(10 ** (-level / 10) for level in levels) / len(levels)) if noisy else float("inf")
