"""What one DPU configuration takes: `targets/dpu/arch.json` (AMD's target files) against a unit of the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from edgekit import resources
from edgekit.backends.vitis.equalize import is_level
from edgekit.backends.vitis.net import ACTIVATIONS, DPU, LINEAR, Net, attribute
from edgekit.errors import UsageError, close_match

Refusal = tuple[str, str]
"""Reason and suggestion."""

MOST_CHANNELS = 256
"""Times the channel parallelism (AMD UG1414, supported operators)."""

_FUSED = {"Relu": "relu", "Clip": "relu_six", "LeakyRelu": "leaky_relu"}


class Engine(msgspec.Struct, frozen=True):
    """One engine's limits; ranges are inclusive."""

    kernel: tuple[int, int] = (1, 256)
    stride: tuple[int, int] = (1, 256)
    activations: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


class Arch(msgspec.Struct, frozen=True):
    """A DPU configuration. `banks` are (number, width, depth) by name."""

    type: str
    banks: dict[str, tuple[int, int, int]]
    channel_parallel: int
    conv: Engine
    eltwise: Engine
    alu: Engine


class _Catalogue(msgspec.Struct, frozen=True):
    tool: str
    archs: dict[str, Arch]


def load(name: str) -> Arch | None:
    """The configuration `name`; None for the generic profile (`any`). Raises `UsageError` for an unknown one."""
    if name == "any":
        return None
    known = msgspec.json.decode((resources.directory("targets") / "dpu" / "arch.json").read_bytes(), type=_Catalogue).archs
    if name not in known:
        raise UsageError(f"there is no DPU configuration {name!r}", close_match(name, known))
    return known[name]


def judge(arch: Arch | None, keep: Sequence[str] = ()) -> Callable[[Net, list[Any]], Refusal | None]:
    """The function that refuses nodes of a unit, or None. `keep` are outputs of operators that the user leaves in float."""

    def refused(net: Net, nodes: list[Any]) -> Refusal | None:
        if any(node.output[0] in keep for node in nodes):
            return "kept in float by request", ""
        return _form(net, nodes) or (_limit(arch, net, nodes) if arch else None)

    return refused


def _form(net: Net, nodes: list[Any]) -> Refusal | None:
    """What no DPU takes."""
    head = nodes[0]
    kind, shape = head.op_type, net.shapes.get(head.output[0], ())
    if kind not in DPU:
        return f"the DPU does not have {kind}", _SUGGESTIONS.get(kind, "use an operator of the DPU in its place")
    if not shape or not all(shape):
        return "the size of its output is not known", "give fixed shapes with --input"
    if kind in LINEAR and not all(name in net.constants for name in head.input[1:] if name):
        return f"{kind} of two computed tensors", "the DPU needs constant weights"
    if kind in ("Conv", "ConvTranspose", "MaxPool", "AveragePool") and len(shape) != 4:
        return f"{kind} over {len(shape) - 2} dimension", "use a two-dimensional one of height 1"
    checks: dict[str, Callable[[Net, Any], Refusal | None]] = {"Resize": _resize, "Clip": _clip, "HardSigmoid": _hard_sigmoid, "AveragePool": _pool}
    for node in nodes:
        if (check := checks.get(node.op_type)) and (found := check(net, node)):
            return found
    if kind in ("Add", "Sub", "Mul") and len(nodes[0].input) == 2 and not net.data(head):
        return f"{kind} of constants", ""
    if kind == "HardSigmoid" and len(nodes) == 1:
        return "HardSigmoid without the DPU's factor", ""
    return _mean(net, nodes)


def _resize(net: Net, node: Any) -> Refusal | None:
    before, after = net.shapes[node.input[0]], net.shapes[node.output[0]]
    mode, grid = attribute(node, "mode", b"nearest"), attribute(node, "coordinate_transformation_mode", b"half_pixel")
    whole = len(before) == 4 and before[:2] == after[:2] and all(b and a % b == 0 for b, a in zip(before, after, strict=True))
    given = len(node.input) > 2 and node.input[2] in net.constants and len(net.constants[node.input[2]]) == 4
    if not whole or not given:
        return "Resize by other than a whole factor", "resize by 2"
    doubled = [2 * size for size in before[2:]] == list(after[2:])
    if mode == b"linear" and not (doubled and grid in (b"half_pixel", b"pytorch_half_pixel", b"asymmetric")):
        return f"bilinear Resize, {grid.decode()}, to {after[2]}x{after[3]}", "resize by 2 without align_corners, or nearest"
    return ("cubic Resize", "use nearest or bilinear") if mode not in (b"linear", b"nearest") else None


def _clip(net: Net, node: Any) -> Refusal | None:
    limits = [float(net.constants[name].ravel()[0]) if name in net.constants else None for name in node.input[1:]]
    if limits in ([0.0, 6.0], [0.0, 1.0]) or (len(limits) == 2 and limits[0] == 0 and is_level(limits[1] or 0.0)):
        return None
    return f"Clip to {limits}", "the DPU has ReLU, ReLU6 and LeakyReLU"


def _hard_sigmoid(_net: Net, node: Any) -> Refusal | None:
    alpha = attribute(node, "alpha", 0.2)
    return None if abs(alpha - 1 / 6) < 1e-6 else (f"HardSigmoid with slope {alpha:.4g}", "train with slope 1/6, which the DPU has")


def _pool(_net: Net, node: Any) -> Refusal | None:
    if any(attribute(node, "pads", [0])) and not attribute(node, "count_include_pad", 0):
        return "AveragePool that leaves its border out of the count", "use count_include_pad, or pad before it"
    return ("AveragePool with ceil_mode", "pad before it") if attribute(node, "ceil_mode", 0) else None


def _mean(net: Net, nodes: list[Any]) -> Refusal | None:
    if nodes[0].op_type != "GlobalAveragePool" or len(nodes) > 1:
        return None
    area = math.prod(net.shapes[nodes[0].input[0]][2:])
    return None if area & (area - 1) == 0 else ("a mean without the DPU's factor", "")


def _limit(arch: Arch, net: Net, nodes: list[Any]) -> Refusal | None:
    """What this configuration does not take."""
    head = nodes[0]
    fused = next((_FUSED[node.op_type] for node in nodes[1:] if node.op_type in ACTIVATIONS), None)
    if head.op_type in ("Conv", "ConvTranspose"):
        depthwise = head.op_type == "Conv" and attribute(head, "group", 1) > 1
        return _conv(arch, net, head, arch.alu if depthwise else arch.conv, fused, depthwise)
    if head.op_type in ("Gemm", "MatMul"):
        return _activation("the convolution engine", arch.conv, fused)
    if head.op_type in ("MaxPool", "AveragePool"):
        kernel = attribute(head, "kernel_shape")
        return _range("kernel", kernel, arch.alu.kernel) or _range("stride", attribute(head, "strides", [1, 1]), arch.alu.stride)
    if head.op_type in ("Add", "Sub", "Mul"):
        kind = {"Add": "add", "Sub": "sub", "Mul": "mult"}[head.op_type]
        if kind not in arch.eltwise.types:
            return f"the element-wise engine does not have {kind}", "use Add or Mul"
        return _activation("the element-wise engine", arch.eltwise, fused)
    return None


def _conv(arch: Arch, net: Net, node: Any, engine: Engine, fused: str | None, depthwise: bool) -> Refusal | None:
    weight, strides = net.shapes[node.input[1]], attribute(node, "strides", [1, 1])
    groups, inputs = attribute(node, "group", 1), net.shapes[node.input[0]][1]
    outputs = net.shapes[node.output[0]][1]
    if groups > 1 and not (depthwise and groups == inputs):
        return f"a convolution of {groups} groups", "use a depthwise or a plain convolution"
    if node.op_type == "ConvTranspose":
        found = _range("kernel / stride", [-(-k // s) for k, s in zip(weight[2:], strides, strict=True)], engine.kernel)
    else:
        found = _range("kernel", weight[2:], engine.kernel) or _range("stride", strides, engine.stride)
    most = MOST_CHANNELS * arch.channel_parallel
    dilation = max(attribute(node, "dilations", [1, 1]))
    if not found and (max(inputs * dilation, outputs) > most):
        found = f"{max(inputs, outputs)} channels (dilation {dilation}), and the limit is {most}", "use fewer channels"
    bank = arch.banks["DWCONVW" if depthwise else "CONVW"]
    taken = math.prod(weight[2:]) * math.ceil(inputs / bank[1])
    if not found and taken > bank[2]:
        found = f"its weights take {taken} rows of a bank of {bank[2]}", "use a smaller kernel or fewer channels"
    return found or _activation("the engine", engine, fused)


def _range(what: str, values: Sequence[int], limits: tuple[int, int]) -> Refusal | None:
    bad = next((v for v in values if not limits[0] <= v <= limits[1]), None)
    return None if bad is None else (f"{what} {bad}, outside {limits[0]} to {limits[1]}", f"use a {what} of up to {limits[1]}")


def _activation(label: str, engine: Engine, fused: str | None) -> Refusal | None:
    return (f"{label} does not fuse {fused}", "use ReLU") if fused and fused not in engine.activations else None


_SUGGESTIONS = {
    "Sigmoid": "set hard_sigmoid = true in the profile's options for HardSigmoid, or leave a last Sigmoid to the CPU",
    "Softmax": "leave it to the CPU as the last operator, or drop it and use the scores",
    "PRelu": "use one slope for all channels, which becomes LeakyReLU",
    "BatchNormalization": "it folds into a convolution right before it",
}
