"""From a QDQ ONNX file to a program: which operators and shifts it stands for, and what the accelerator would refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgekit.errors import UsageError, close_match, require
from edgekit.tensors import Array, Signature
from edgekit.virtual.dpu import edges, kernels
from edgekit.virtual.dpu.activations import ACTIVATIONS
from edgekit.virtual.dpu.arithmetic import ROUNDINGS, Rounding, accumulator_type, position, requantize
from edgekit.virtual.dpu.loading import attributes_of, edge, load, shapes_of, with_scales
from edgekit.virtual.dpu.movement import BUILDERS
from edgekit.virtual.dpu.operands import Accumulated, Operand, refuse
from edgekit.virtual.dpu.operators import averaged, scaled
from edgekit.virtual.dpu.program import Program, Step, last_uses

CPU_KEY = "edgekit.cpu"
"""Metadata of an artifact: a JSON list of the operators (by their first output) that run on the CPU in float, by plan."""

ROUNDING_KEY = "edgekit.rounding"

FLOAT_ONLY = "a float-only operator runs on the CPU"


@dataclasses.dataclass
class _State:
    """What is known while reading: int8 tensors and constants by the real value they stand for, accumulators not yet shifted, steps."""

    proto: Any
    rounding: Rounding
    cpu: frozenset[str]
    constants: dict[str, Array]
    shapes: dict[str, tuple[int, ...]]
    int8_inputs: frozenset[str]
    stored: dict[str, Operand] = dataclasses.field(default_factory=dict)
    real: dict[str, Operand] = dataclasses.field(default_factory=dict)
    pending: dict[str, Accumulated] = dataclasses.field(default_factory=dict)
    floats: set[str] = dataclasses.field(default_factory=set)
    steps: list[Step] = dataclasses.field(default_factory=list)


def read(source: Path | Any, rounding: str | None = None, *, allow_cpu: bool = True) -> Program:
    """Prepare a file, or a `ModelProto`.

    `rounding` is that of every shift (the file's own, or `half_even`, where not given); input quantization rounds half to even, as the
    host does. Raises `ConversionError` naming the operator for: an opset outside 13 to 23, a dynamic shape, a scale that is not a power
    of two, a zero point, another type than int8, operators in float that the file does not plan for the CPU (any, without `allow_cpu`).
    """
    proto = load(source)
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    rule = rounding or metadata.get(ROUNDING_KEY, "half_even")
    if rule not in ROUNDINGS:
        raise UsageError(f"unknown rounding {rule!r}", close_match(rule, ROUNDINGS))
    planned = frozenset(msgspec.json.decode(metadata.get(CPU_KEY, "[]"), type=list[str])) if allow_cpu else frozenset[str]()
    onnx = require("onnx", extra="onnx", purpose="reading an ONNX model")
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    inputs, outputs = edge(proto.graph.input, constants), edge(proto.graph.output, constants)
    int8 = frozenset(spec.name for spec in inputs if spec.dtype == "int8")
    state = _State(proto, rule, planned, constants, shapes_of(proto), int8)  # type: ignore[arg-type]  # one of ROUNDINGS
    state.floats |= {spec.name for spec in inputs if spec.dtype != "int8"}
    for node in proto.graph.node:
        _node(state, node)
    for spec in outputs:
        if spec.dtype == "uint8":
            raise refuse(spec.name, "an output of type uint8", "quantize to int8, or leave it in float")
        _output(state, spec.name)
    positions = {operand.name: operand.position for operand in state.stored.values() if operand.constant is None}
    steps = tuple(state.steps)
    return Program(Signature(with_scales(inputs, positions), with_scales(outputs, positions)), steps, positions, last_uses(steps))


def _node(state: _State, node: Any) -> None:
    name = node.output[0]
    if node.op_type == "Constant":
        import onnx

        state.constants[name] = onnx.numpy_helper.to_array(next(a.t for a in node.attribute if a.name == "value"))
    elif name in state.cpu:
        _cpu(state, node)
    elif node.op_type == "QuantizeLinear":
        _quantize(state, node)
    elif node.op_type == "DequantizeLinear":
        _dequantize(state, node)
    elif node.domain not in ("", "ai.onnx"):
        raise refuse(name, f"{node.domain}::{node.op_type} is not an operator of standard ONNX")
    elif node.input[0] in state.pending:
        _fuse(state, node)
    else:
        _operator(state, node)


def _scale_of(state: _State, node: Any) -> int:
    scale, zero = state.constants.get(node.input[1]), state.constants.get(node.input[2]) if len(node.input) > 2 else None
    if scale is None or scale.size != 1:
        raise refuse(node.output[0], "its scale is per channel or computed", "the accelerator has one scale a tensor")
    found = position(float(scale.ravel()[0]))
    if found is None:
        raise refuse(node.output[0], f"the scale {float(scale.ravel()[0]):.8g} is not a power of two", "quantize with power-of-two scales")
    if zero is not None and not _symmetric(zero):
        what = f"the zero point {zero.ravel()[0]} ({zero.dtype}): the accelerator is int8 and symmetric"
        raise refuse(node.output[0], what, "quantize to int8 with zero point 0")
    if zero is None and node.op_type == "QuantizeLinear":
        raise refuse(node.output[0], "QuantizeLinear to uint8", "quantize to int8")
    return found


def _symmetric(zero: Array) -> bool:
    """Whether a zero point is that of int8 (or of an int32 bias) without offset; uint8 around 128 holds the same values."""
    return bool((zero == 128).all()) if zero.dtype == "uint8" else zero.dtype.name in ("int8", "int32") and not zero.any()


def _quantize(state: _State, node: Any) -> None:
    source, name, to = node.input[0], node.output[0], _scale_of(state, node)
    state.stored[name] = Operand(name, to)
    if source in state.pending:
        _emit(state, state.pending.pop(source), name, to)
    elif source in state.real and state.real[source].constant is None:
        operand = state.real[source]
        _emit(state, Accumulated("Requantize", name, (operand.name,), operand.position, 128, lambda arrays: arrays[0]), name, to)
    elif source in state.floats:
        state.steps.append(Step(name, "QuantizeLinear", "edge", (source,), (name,), edges.quantizer(to)))
    else:
        raise refuse(name, f"it quantizes {source}, which nothing computes")


def _emit(state: _State, made: Accumulated, name: str, to: int) -> None:
    import numpy as np

    if made.divisor != 1:
        hint = "multiply by the correction factor that makes it k / 2^n" if made.divisor != 6 else "multiply by 2731 * 6 / 16384"
        raise refuse(made.name, f"{made.type} divides by {made.divisor}, and the accelerator only shifts", hint)
    shift, rounding = made.position - to, state.rounding
    kind = accumulator_type(made.bound + (1 << max(shift, 0)))  # half a step is added before the shift

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        values = made.compute(arrays)
        if values.dtype == np.int8 and shift == 0:
            return (values,)
        return (requantize(values.astype(kind, copy=False), shift, rounding),)

    state.steps.append(Step(made.name, made.type, "dpu", made.inputs, (name,), run, shift))


def _dequantize(state: _State, node: Any) -> None:
    source, name, at = node.input[0], node.output[0], _scale_of(state, node)
    if source in state.constants:
        constant = state.constants[source]
        if constant.dtype == "uint8":
            constant = (constant.astype("int16") - 128).astype("int8")
        if constant.dtype.name not in ("int8", "int32"):
            raise refuse(name, f"constants of type {constant.dtype}", "int8 weights, int8 or int32 biases")
        state.real[name] = Operand(name, at, constant)
        return
    if source not in state.stored:
        if source not in state.int8_inputs:
            raise refuse(name, f"it dequantizes {source}, which is no int8 tensor")
        state.stored[source] = Operand(source, at)
    if state.stored[source].position != at:
        raise refuse(name, f"{source} is quantized with 2^{-state.stored[source].position} and dequantized with 2^{-at}")
    state.real[name] = state.stored[source]


def _operator(state: _State, node: Any) -> None:
    name, attributes = node.output[0], attributes_of(node)
    operands: list[Operand | Array | None] = [_operand(state, node, given) for given in node.input]
    if node.op_type in ACTIVATIONS:
        data = operands[0]
        assert isinstance(data, Operand)
        moved = Accumulated("Identity", name, (data.name,), data.position, 128, lambda arrays: arrays[0])
        state.pending[name] = ACTIVATIONS[node.op_type](moved, attributes, _limits(operands[1:]))
    elif node.op_type == "GlobalAveragePool" or (node.op_type == "ReduceMean" and _spatial(state, node, attributes)):
        state.pending[name] = _global_pool(state, node, operands[0])
    elif node.op_type in BUILDERS:
        state.pending[name] = BUILDERS[node.op_type](name, attributes, operands)
    else:
        raise refuse(name, f"{node.op_type} is not an operator of the accelerator", "it runs on the CPU: plan it there")


def _operand(state: _State, node: Any, name: str) -> Operand | Array | None:
    if not name:
        return None
    if name in state.real:
        return state.real[name]
    if name in state.constants:
        return state.constants[name]
    if name in state.pending or name in state.floats:
        raise refuse(node.output[0], f"{node.op_type} reads {name} in float: no QuantizeLinear stands between", FLOAT_ONLY)
    raise refuse(node.output[0], f"{node.op_type} reads {name}, which nothing computes")


def _limits(operands: Sequence[Operand | Array | None]) -> list[float | None]:
    found = [None if operand is None or isinstance(operand, Operand) else float(operand.ravel()[0]) for operand in operands]
    return [*found, None, None][:2]


def _spatial(state: _State, node: Any, attributes: dict[str, Any]) -> bool:
    axes = attributes.get("axes") or (state.constants[node.input[1]].tolist() if len(node.input) > 1 and node.input[1] in state.constants else ())
    rank = len(state.shapes.get(node.input[0], ()))
    return rank == 4 and sorted(axis % rank for axis in axes) == [2, 3]


def _global_pool(state: _State, node: Any, data: Operand | Array | None) -> Accumulated:
    name, shape, keep = node.output[0], state.shapes.get(node.input[0], ()), bool(attributes_of(node).get("keepdims", 1))
    if len(shape) != 4 or not all(shape) or not isinstance(data, Operand):
        raise refuse(name, f"{node.op_type} over an unknown size")
    window = kernels.Window((shape[2], shape[3]))

    def total(values: Array) -> Array:
        found = kernels.window_sum(values, window)
        return found if keep else found[:, :, 0, 0]

    return averaged("GlobalAveragePool", name, data, shape[2] * shape[3], total)


def _fuse(state: _State, node: Any) -> None:
    """An activation or a constant factor right behind an operator, before its shift."""
    made, name = state.pending.pop(node.input[0]), node.output[0]
    others = [state.constants.get(given) for given in node.input[1:]]
    if node.op_type in ACTIVATIONS:
        state.pending[name] = ACTIVATIONS[node.op_type](made, attributes_of(node), _limits(others))
        return
    factor = others[0] if node.op_type == "Mul" and len(others) == 1 else None
    found = scaled(made, float(factor.ravel()[0])) if factor is not None and factor.size == 1 else None
    if found is None:
        raise refuse(name, f"{node.op_type} reads {node.input[0]} in float: no QuantizeLinear stands between", FLOAT_ONLY)
    state.pending[name] = found


def _cpu(state: _State, node: Any) -> None:
    for given in node.input:
        _to_float(state, given)
    given = tuple(dict.fromkeys(name for name in node.input if name and name not in state.constants))
    outputs = tuple(name for name in node.output if name)
    run = edges.float_operator(state.proto, node, given, outputs, state.constants)
    state.steps.append(Step(node.output[0], node.op_type, "cpu", given, outputs, run))
    state.floats |= set(outputs)


def _to_float(state: _State, name: str) -> None:
    if name in state.real and name not in state.floats and state.real[name].constant is None:
        operand = state.real[name]
        state.steps.append(Step(name, "DequantizeLinear", "edge", (operand.name,), (name,), edges.dequantizer(operand.position)))
        state.floats.add(name)
    elif name in state.real and name not in state.floats:
        operand = state.real[name]
        assert operand.constant is not None
        state.constants[name] = (operand.constant * 2.0**-operand.position).astype("float32")


def _output(state: _State, name: str) -> None:
    _to_float(state, name)
    if name not in state.floats and name not in state.stored:
        raise refuse(name, "the output is computed in float: no QuantizeLinear stands before it", FLOAT_ONLY)
