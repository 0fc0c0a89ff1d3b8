"""Rewrites into the forms that the DPU has. Numbers are those of AMD Quark 0.13 (onnx/postprocess/simulation/simulate_dpu)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from edgekit.backends.vitis import fold, layout
from edgekit.backends.vitis.net import Net, attribute, of_proto, to_proto
from edgekit.qdq import protos
from edgekit.tensors import Array

POOL_FACTORS = {3: 0.984375, 5: 0.9765625, 6: 0.984375, 7: 1.0048828125, 14: 1.0048828125}
"""What the DPU's mean of k x k values is of the true one: it multiplies the sum by k / 2^n."""

HARD_SIGMOID_FACTOR = 1.0001220703125
"""(2731 / 16384) / (1 / 6)."""

SLOPE_STEPS = 256

_CALLED = {"LeakyRelu": "LeakyReLU", "PRelu": "PReLU"}


def legalize(proto: Any, *, hard_sigmoid: bool = False) -> tuple[Net, tuple[str, ...]]:
    """The network in DPU forms, and what was changed in numbers (rewrites that are exact go unsaid).

    Exact: constant factors and offsets folded into layers (`fold`), paddle's and torch's x * clip(x + 3, 0, 6) / 6 as HardSwish, HardSwish
    as x * HardSigmoid(x), spatial ReduceMean as GlobalAveragePool. In numbers: LeakyReLU's slope to a multiple of 1/256, means as sums
    times k / 2^n, HardSigmoid times 1.00012, with `hard_sigmoid` Sigmoid as HardSigmoid.
    """
    net = fold.fold(layout.channels_first(_with_hard_swishes(of_proto(protos.canonical(proto)))))
    made: list[Any] = []
    notices: dict[str, int] = {}
    constants = dict(net.constants)
    for node in net.nodes:
        nodes, notice = _rewritten(net, node, constants, hard_sigmoid)
        made += nodes
        if notice:
            notices[notice] = notices.get(notice, 0) + 1
    rebuilt = of_proto(to_proto(net, made, constants))
    return rebuilt, tuple(f"{notice} ({count}x)" for notice, count in notices.items())


def _with_hard_swishes(net: Net) -> Net:
    """Every x * clip(x + 3, 0, 6) / 6 as one HardSwish."""
    swishes = _hard_swishes(net)
    skipped = {node.output[0] for nodes in swishes.values() for node in nodes[:-1]}
    made = [
        _node("HardSwish", [_swish_input(net, swishes[name])], name) if (name := node.output[0]) in swishes else node
        for node in net.nodes
        if node.output[0] not in skipped
    ]
    return dataclasses.replace(net, nodes=tuple(made))


def _rewritten(net: Net, node: Any, constants: dict[str, Array], hard_sigmoid: bool) -> tuple[list[Any], str]:
    name, kind = node.output[0], node.op_type
    if kind == "HardSwish":
        return _hard_swish(name, node.input[0], constants), ""
    if kind == "Sigmoid" and hard_sigmoid:
        return _hard_sigmoid(name, node.input[0], constants), "Sigmoid became HardSigmoid"
    if kind == "HardSigmoid" and abs(attribute(node, "alpha", 0.2) - 1 / 6) < 1e-6 and attribute(node, "beta", 0.5) == 0.5:
        return _hard_sigmoid(name, node.input[0], constants), ""
    if (slope := _slope(net, node)) is not None:
        rounded = round(slope * SLOPE_STEPS) / SLOPE_STEPS
        notice = f"{_CALLED[kind]}'s slope {slope:.4g} became {rounded * SLOPE_STEPS:.0f}/256"
        return [_node("LeakyRelu", [node.input[0]], name, alpha=rounded)], notice
    if attribute(node, "auto_pad", b"NOTSET") in (b"SAME_UPPER", b"SAME_LOWER") and kind in ("Conv", "MaxPool"):
        return [_explicit_pads(net, node)], ""
    if kind in ("GlobalAveragePool", "AveragePool") or (kind == "ReduceMean" and _spatial(net, node)):
        return _pool(net, node, constants)
    return [node], ""


def _hard_swish(name: str, source: str, constants: dict[str, Array]) -> list[Any]:
    gate = f"{name}/gate"
    return [*_hard_sigmoid(gate, source, constants), _node("Mul", [source, gate], name)]


def _hard_sigmoid(name: str, source: str, constants: dict[str, Array]) -> list[Any]:
    factor = _constant(constants, "dpu/hard_sigmoid_factor", HARD_SIGMOID_FACTOR)
    return [_node("HardSigmoid", [source], f"{name}/plain", alpha=1 / 6, beta=0.5), _node("Mul", [f"{name}/plain", factor], name)]


def _pool(net: Net, node: Any, constants: dict[str, Array]) -> tuple[list[Any], str]:
    """The pool with the DPU's factor behind it, unless the area is a power of two or the DPU does not take it."""
    name, shape = node.output[0], net.shapes[node.input[0]]
    kernel = attribute(node, "kernel_shape") if node.op_type == "AveragePool" else shape[2:]
    on_cpu = attribute(node, "ceil_mode", 0) or (any(attribute(node, "pads", [0])) and not attribute(node, "count_include_pad", 0))
    factor = 1.0 if on_cpu else pool_factor(int(kernel[0]), int(kernel[1]))
    made = [node] if node.op_type != "ReduceMean" else [_node("GlobalAveragePool", [node.input[0]], name)]
    if node.op_type == "ReduceMean" and not attribute(node, "keepdims", 1):
        axes = constants.setdefault("dpu/spatial_axes", _int64([2, 3]))
        assert axes is not None
        made = [_node("GlobalAveragePool", [node.input[0]], f"{name}/kept"), _node("Squeeze", [f"{name}/kept", "dpu/spatial_axes"], name)]
    if factor == 1.0:
        return made, ""
    first = _renamed(made[0], f"{made[0].output[0]}/mean")
    scaled = _node("Mul", [first.output[0], _constant(constants, f"dpu/pool_factor_{kernel[0]}x{kernel[1]}", factor)], made[0].output[0])
    return [first, scaled, *made[1:]], f"the mean of {kernel[0]}x{kernel[1]} values is {factor:.6g} of the true one, as on the DPU"


def _explicit_pads(net: Net, node: Any) -> Any:
    """The node with the pads that its automatic ones come to."""
    import onnx

    sizes, outputs = net.shapes[node.input[0]][2:], net.shapes[node.output[0]][2:]
    kernel = net.shapes[node.input[1]][2:] if node.op_type == "Conv" else attribute(node, "kernel_shape")
    ones = [1] * len(sizes)
    rows = zip(sizes, outputs, kernel, attribute(node, "strides", ones), attribute(node, "dilations", ones), strict=True)
    totals = [max(0, (out - 1) * stride + (taps - 1) * dilation + 1 - size) for size, out, taps, stride, dilation in rows]
    small = [total // 2 for total in totals]
    large = [total - half for total, half in zip(totals, small, strict=True)]
    before, after = (small, large) if attribute(node, "auto_pad") == b"SAME_UPPER" else (large, small)
    copy = _renamed(node, node.output[0])
    del copy.attribute[:]
    copy.attribute.extend(a for a in node.attribute if a.name not in ("auto_pad", "pads"))
    copy.attribute.append(onnx.helper.make_attribute("pads", [*before, *after]))
    return copy


def pool_factor(height: int, width: int) -> float:
    """The DPU's mean over the true one: the table's for known square kernels, otherwise k / 2^n nearest to 1 / area."""
    area = height * width
    if height == width and height in POOL_FACTORS:
        return POOL_FACTORS[height]
    if area & (area - 1) == 0:
        return 1.0
    trials = [(round(2**bits / area), bits) for bits in range(7 + math.ceil(math.log2(area)))]
    k, bits = min(trials, key=lambda trial: (abs(trial[0] / 2 ** trial[1] - 1 / area), trial[1]))
    return float(k / 2**bits * area)


def _slope(net: Net, node: Any) -> float | None:
    """The slope of a LeakyRelu, or of a PRelu that has one for all channels; None for other nodes."""
    if node.op_type == "LeakyRelu":
        return float(attribute(node, "alpha", 0.01))
    slopes = net.constants.get(node.input[1]) if node.op_type == "PRelu" else None
    if slopes is None or not slopes.size or (slopes != slopes.ravel()[0]).any() or slopes.ravel()[0] < 0:
        return None
    return float(slopes.ravel()[0])


def _spatial(net: Net, node: Any) -> bool:
    axes = attribute(node, "axes") or (net.constants[node.input[1]].tolist() if len(node.input) > 1 and node.input[1] in net.constants else [])
    return len(net.shapes.get(node.input[0], ())) == 4 and sorted(axis % 4 for axis in axes) == [2, 3]


def _hard_swishes(net: Net) -> dict[str, list[Any]]:
    """X * clip(x + 3, 0, 6) / 6 by the name of its result: the nodes of each."""
    readers = net.readers()
    found = {}
    for add in net.nodes:
        if add.op_type != "Add" or _scalar(net, add) != 3.0 or len(net.data(add)) != 1:
            continue
        chain = [add]
        for kinds in (("Clip",), ("Mul", "Div"), ("Mul", "Div")):
            after = readers.get(chain[-1].output[0], [])
            if len(after) != 1 or after[0].op_type not in kinds or chain[-1].output[0] in net.outputs:
                break
            chain.append(after[0])
        if len(chain) == 4 and _is_swish(net, chain):
            found[chain[-1].output[0]] = chain
    return found


def _is_swish(net: Net, chain: list[Any]) -> bool:
    source, clip = _swish_input(net, chain), chain[1]
    limits = [float(net.constants[name].ravel()[0]) for name in clip.input[1:] if name in net.constants]
    gates = [node for node in chain[2:] if source in node.input and node.op_type == "Mul"]
    sixths = [node for node in chain[2:] if _sixth(net, node)]
    return limits == [0.0, 6.0] and len(gates) == 1 and len(sixths) == 1


def _sixth(net: Net, node: Any) -> bool:
    value = _scalar(net, node)
    return value is not None and abs((1 / value if node.op_type == "Div" else value) - 1 / 6) < 1e-6


def _swish_input(net: Net, chain: list[Any]) -> str:
    return net.data(chain[0])[0]


def _scalar(net: Net, node: Any) -> float | None:
    values = [net.constants[name] for name in node.input if name in net.constants]
    return float(values[0].ravel()[0]) if len(values) == 1 and values[0].size == 1 else None


def _node(kind: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    import onnx

    return onnx.helper.make_node(kind, inputs, [output], name=output, **attributes)


def _renamed(node: Any, output: str) -> Any:
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.output[0] = copy.name = output
    return copy


def _constant(constants: dict[str, Array], name: str, value: float) -> str:
    import numpy as np

    constants[name] = np.array(value, np.float32)
    return name


def _int64(values: list[int]) -> Array:
    import numpy as np

    return np.array(values, np.int64)
