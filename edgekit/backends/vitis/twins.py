"""HardSwish whose channels can be scaled: one copy of the layer before it feeds the gate, another, scaled freely, feeds the product."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from edgekit.backends.vitis.net import LINEAR, Net, Unit, of_proto, to_proto
from edgekit.tensors import Array

LEAST_SHARE = 0.02
"""A layer is doubled where its HardSwish brings at least this share of the noise at the outputs."""

MOST_MACS = 0.15
"""How many MACs all copies may add, as a share of the network's."""


@dataclasses.dataclass(frozen=True)
class Gated:
    """x * HardSigmoid(x) of a layer's output x that nothing else reads: the nodes of the layer, of the gate's begin and of the product, and the
    layer's MACs.
    """

    layer: Any
    gate: Any
    product: Any
    macs: int

    @property
    def source(self) -> str:
        """The name of x."""
        return str(self.layer.output[0])


def find(net: Net, units: Sequence[Unit]) -> list[Gated]:
    """Every HardSwish right behind a layer of the accelerator."""
    readers, found = net.readers(), []
    for unit in units:
        layer = unit.head
        if not unit.on_dpu or layer.op_type not in ("Conv", "Gemm") or len(unit.nodes) > 1 or unit.output in net.outputs:
            continue
        after = readers.get(unit.output, [])
        gates = [node for node in after if node.op_type == "HardSigmoid"]
        products = [node for node in after if node.op_type == "Mul" and len(net.data(node)) == 2]
        if len(after) == 2 and len(gates) == len(products) == 1 and _gates(readers, gates[0], products[0]):
            found.append(Gated(layer, gates[0], products[0], macs(net, layer)))
    return found


def _gates(readers: Mapping[str, list[Any]], gate: Any, product: Any) -> bool:
    """Whether the product's other factor is the gate, through its constant factor or not, and nothing else reads that."""
    name = gate.output[0]
    while name not in product.input:
        after = readers.get(name, [])
        if len(after) != 1 or after[0].op_type != "Mul":
            return False
        name = after[0].output[0]
    return len(readers.get(name, [])) == 1


def macs(net: Net, node: Any) -> int:
    """Multiply-accumulates of a layer, 0 of other nodes."""
    if node.op_type not in LINEAR or node.input[1] not in net.constants:
        return 0
    weight, shape = net.constants[node.input[1]], net.shapes[node.output[0]]
    if node.op_type in ("Conv", "ConvTranspose"):
        where = shape if node.op_type == "Conv" else net.shapes[node.input[0]]
        return math.prod(where) * math.prod(weight.shape[1:])
    return int(weight.size) * math.prod(shape[:-1])


def worthwhile(net: Net, found: Sequence[Gated], costs: Mapping[str, float]) -> list[Gated]:
    """Those that bring much of the noise, the most noise a MAC first, within the MACs that copies may add.

    `costs` is the noise of each tensor at the outputs, as of `search.costs`.
    """
    total, room = sum(costs.values()), MOST_MACS * sum(macs(net, node) for node in net.nodes)
    brought = {one.source: sum(costs.get(name, 0.0) for name in (one.source, one.product.output[0])) for one in found}
    chosen = []
    for one in sorted(found, key=lambda g: (-brought[g.source] / max(g.macs, 1), g.source)):
        if brought[one.source] >= LEAST_SHARE * total and one.macs <= room:
            chosen.append(one)
            room -= one.macs
    return chosen


def double(net: Net, chosen: Sequence[Gated]) -> Net:
    """The network with a copy of each layer for the gate alone. Computes the same."""
    constants = dict(net.constants)
    gates = {one.gate.output[0]: one for one in chosen}
    copied = {one.source: one for one in chosen}
    nodes: list[Any] = []
    for node in net.nodes:
        if node.output[0] in gates:
            nodes.append(_with(node, [copy_of(node.input[0])], node.output[0]))
            continue
        nodes.append(node)
        if node.output[0] in copied:
            nodes.append(_copy(node, constants))
    return of_proto(to_proto(net, nodes, constants))


def copy_of(name: str) -> str:
    """What the gate's copy of a layer's output is called."""
    return f"{name}/gate_input"


def _copy(node: Any, constants: dict[str, Array]) -> Any:
    names = [node.input[0], *(f"{name}/gate" if name else "" for name in node.input[1:])]
    for name, copy in zip(node.input[1:], names[1:], strict=True):
        if name:
            constants[copy] = constants[name]
    return _with(node, names, copy_of(node.output[0]))


def _with(node: Any, inputs: Sequence[str], output: str) -> Any:
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.input[:], copy.output[:]
    copy.input.extend(inputs)
    copy.output.append(output)
    copy.name = output
    return copy
