"""The stock quantizer: ai-edge-quantizer's recipes and transformations, fed with ranges that the caller measured."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from edgekit.backends import Candidate
from edgekit.errors import ConversionError, require
from edgekit.formats import tflite_flatbuffer as flatbuffer

PARTS = {"SPLIT": 1, "SPLIT_V": 0, "UNPACK": 0}
"""Operators whose outputs are parts of one input, on its grid -> which input that is."""

MIN_WEIGHT_ELEMENTS = 256
"""Below this, int8 weights with their scales and the extra DEQUANTIZE operator take more bytes than the float weights (weight-only)."""


class Range(NamedTuple):
    """Real values that an activation takes, and its rank (the stock quantizer wants statistics of the tensor's own rank)."""

    low: float
    high: float
    rank: int


Ranges = Mapping[str, Range]
"""By tensor name."""


class Policy(msgspec.Struct, frozen=True):
    """How operators are treated, by their scope (output tensor names): `keep_float`, `wide` (int16 activations); `io` at the edges."""

    keep_float: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    io: str = "float32"


def quantize(content: bytes, candidate: Candidate, policy: Policy, ranges: Ranges | None = None, channels: Mapping[str, Any] | None = None) -> bytes:
    """Quantize a float `.tflite` to the candidate's precision (`w8`, `w8-dynamic`, `w8a8`, `w8a16`).

    `ranges` are those of the activations (static precisions need them); `channels` gives the largest magnitude per output channel of
    a weight tensor, shaped to broadcast against it, where it is not the weight's own. Raises `ConversionError`.
    """
    stock = require("ai_edge_quantizer.quantizer", extra="litert", purpose="quantizing .tflite files")
    values = _statistics(ranges or {}, channels or {})
    try:
        with _quiet():
            quantizer = stock.Quantizer(bytearray(content))
            _recipe(quantizer, candidate, policy)
            result = quantizer.quantize(values or None, enable_progress_bar=False, enable_progress_report=False)
    except Exception as error:  # the quantizer raises whatever an operator that it does not expect happens to hit
        raise _refusal(candidate, error) from error
    model = flatbuffer.load(bytes(result.quantized_model))
    mended = [_type_unread(model), _name_outputs(model, policy.io)]
    return flatbuffer.dump(model) if any(mended) else bytes(result.quantized_model)


def _name_outputs(model: Any, io: str) -> bool:
    """Let signature and graph name the same outputs: they part where a float operator reads one too, for which it is dequantized.

    Whether anything changed.
    """
    changed = False
    for entry in model.signatureDefs or ():
        graph = model.subgraphs[entry.subgraphIndex]
        behind = {int(op.inputs[0]): int(op.outputs[0]) for op in graph.operators if flatbuffer.op_name(model, op) == "DEQUANTIZE"}
        outputs = [int(i) for i in graph.outputs]
        for port in entry.outputs:
            stored, real = int(port.tensorIndex), behind.get(int(port.tensorIndex))
            if stored in outputs or real not in outputs:
                continue
            changed = True
            if io == "int8":
                outputs[outputs.index(real)] = stored
            else:
                port.tensorIndex = real
        graph.outputs = outputs
    return changed


def _type_unread(model: Any) -> bool:
    """Give parts that nothing reads the type of the whole: the quantizer leaves them in float, and no runtime takes a split into both.

    Whether anything changed.
    """
    changed = False
    for graph in model.subgraphs:
        read = {int(i) for i in graph.outputs} | {int(i) for op in graph.operators for i in op.inputs}
        for op in graph.operators:
            source = PARTS.get(flatbuffer.op_name(model, op))
            for part in (graph.tensors[i] for i in op.outputs if source is not None and int(i) not in read):
                whole = graph.tensors[int(op.inputs[source])]
                changed |= part.type != whole.type
                part.type, part.quantization = whole.type, whole.quantization
    return changed


def _refusal(candidate: Candidate, error: Exception) -> ConversionError:
    hint = "try another precision, or keep the named operator in float"
    return ConversionError(f"{candidate.precision}: the quantizer refuses the model: {type(error).__name__}: {error}", hint)


def _recipe(quantizer: Any, candidate: Candidate, policy: Policy) -> None:
    every = require("ai_edge_quantizer.qtyping", extra="litert", purpose="quantizing .tflite files").TFLOperationName
    if candidate.precision == "w8":
        quantizer.load_quantization_recipe([_weight_only()])
    elif candidate.precision == "w8-dynamic":
        quantizer.add_dynamic_config(".*", every.ALL_SUPPORTED, num_bits=8)
    else:
        bits = 16 if candidate.precision == "w8a16" else 8
        quantizer.add_static_config(".*", every.ALL_SUPPORTED, activation_num_bits=bits, weight_num_bits=8)
        for scope in policy.wide if bits == 8 else ():
            quantizer.add_static_config(f"^{re.escape(scope)}", every.ALL_SUPPORTED, activation_num_bits=16, weight_num_bits=8)
        _edges(quantizer, every, policy.io)
    for scope in policy.keep_float:
        quantizer.update_quantization_recipe(f"^{re.escape(scope)}", every.ALL_SUPPORTED, algorithm_key="no_quantize")


def _edges(quantizer: Any, every: Any, edge_type: str) -> None:
    for edge in (every.INPUT, every.OUTPUT):
        if edge_type == "int8":
            quantizer.add_static_config("^.*$", edge, activation_num_bits=8, weight_num_bits=8)
        else:
            quantizer.update_quantization_recipe("^.*$", edge, algorithm_key="no_quantize")


def _weight_only() -> dict[str, Any]:
    weights = {"num_bits": 8, "symmetric": True, "granularity": "CHANNELWISE", "dtype": "INT"}
    config = {"weight_tensor_config": weights, "compute_precision": "FLOAT", "explicit_dequantize": True, "min_weight_elements": MIN_WEIGHT_ELEMENTS}
    return {"regex": ".*", "operation": "*", "algorithm_key": "min_max_uniform_quantize", "op_config": config}


def _statistics(ranges: Ranges, channels: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    import numpy as np

    def filled(value: float, rank: int) -> Any:
        return np.full((1,) * rank, value, np.float32)

    activations = {name: {"min": filled(r.low, r.rank), "max": filled(r.high, r.rank)} for name, r in ranges.items()}
    return activations | {name: {"min": -magnitude, "max": magnitude} for name, magnitude in channels.items()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the quantizer's progress bars, log lines and warnings off the user's terminal: what matters of them is found by edgekit itself."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
