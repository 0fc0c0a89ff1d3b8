"""The operators of a package as a `Graph`, for verdicts, budgets and inspection."""

from __future__ import annotations

import math
from typing import Any

from edgekit.graph import Graph, GraphTensor, Operator
from edgekit.virtual.coreml import packed, spec
from edgekit.virtual.coreml.package import Package

PLAIN_LIMIT = 16
"""Small constants are shown as attributes, larger ones are tensors."""


DATA = {"x": 0, "values": 0, "y": 1}
"""Parameters that come first: a package has them in any order, and verdicts look for an operator's data in front."""


RECURRENT = frozenset(("lstm", "gru", "rnn"))


class _Listing:
    def __init__(self) -> None:
        self.tensors: list[GraphTensor] = []
        self.index: dict[str, int] = {}
        self.plain: dict[str, Any] = {}
        self.operators: list[Operator] = []
        self.blocks = 1

    def tensor(self, name: str, kind: spec.Type, stored_bytes: int = 0, constant: bool = False) -> int:
        self.index[name] = len(self.tensors)
        self.tensors.append(GraphTensor(name, kind.shape, kind.dtype, constant=constant, stored_bytes=stored_bytes))
        return self.index[name]


def graph(package: Package) -> Graph:
    """Operators in execution order, those of control-flow bodies behind the operator that holds them; compressed weights are operators too."""
    listing = _Listing()
    inputs = tuple(listing.tensor(item.name, item.type) for item in package.program.inputs)
    version = int("".join(c for c in package.program.opset if c.isdigit()) or 0)
    _block(package.program.block, listing, version)
    outputs = tuple(listing.index[name] for name in package.program.block.outputs)
    return Graph("mlprogram", tuple(listing.tensors), tuple(listing.operators), inputs, outputs, package.file_bytes, listing.blocks)


def _block(block: spec.Block, listing: _Listing, version: int) -> None:
    for item in block.inputs:
        listing.tensor(item.name, item.type)
    for operation in block.operations:
        if operation.type == "const":
            _constant(operation.outputs[0].name, operation.attributes["val"], listing)
        else:
            _operator(operation, listing, version)


def _constant(name: str, value: spec.Constant, listing: _Listing) -> int:
    elements = math.prod(value.type.shape)
    if value.kind == "tensor" and elements <= PLAIN_LIMIT:
        listing.plain[name] = _plain(value)
    stored = packed.stored_bytes(value.type.dtype, elements) if value.type.dtype in packed.WHOLE or value.type.dtype in packed.SUB_BYTE else 0
    return listing.tensor(name, value.type, stored, True)


def _plain(value: spec.Constant) -> Any:
    if "bytes" in value.payload:
        return packed.unpack(value.payload["bytes"].get("values", b""), value.type.dtype, value.type.shape).tolist()
    values = next((list(v.get("values", ())) for v in value.payload.values()), [])
    return values if value.type.shape or len(values) != 1 else values[0]


def _operator(operation: spec.Operation, listing: _Listing, version: int) -> None:
    inputs: list[int] = []
    attributes: dict[str, Any] = {}
    literals = {name: (value,) for name, value in operation.attributes.items() if name != "name"}
    for parameter, bindings in (*sorted(operation.inputs.items(), key=lambda item: DATA.get(item[0], 2)), *literals.items()):
        for binding in bindings:
            name = binding if isinstance(binding, str) else f"{operation.name}.{parameter}"
            if isinstance(binding, spec.Constant):
                _constant(name, binding, listing)
            if name in listing.plain:
                attributes[parameter] = listing.plain[name]
            else:
                inputs.append(listing.index.get(name, -1))
    outputs = tuple(listing.tensor(item.name, item.type) for item in operation.outputs)
    macs = _macs(operation, listing, inputs)
    listing.operators.append(
        Operator(
            len(listing.operators),
            operation.type,
            version,
            operation.name,
            tuple(inputs),
            outputs,
            attributes,
            macs,
            operation.type == "custom_layer",
        )
    )
    for inner in operation.blocks:
        listing.blocks += 1
        _block(inner, listing, version)


def _macs(operation: spec.Operation, listing: _Listing, inputs: list[int]) -> int:
    """Multiply-accumulates where every size is known: of convolutions, linear and recurrent layers, and matrix products."""
    if operation.type in RECURRENT:
        return _steps(operation, listing)
    out = math.prod(operation.outputs[0].type.shape) if operation.outputs else 0
    shapes = [listing.tensors[i].shape for i in inputs if i >= 0]
    if out <= 0 or len(shapes) < 2 or any(size < 0 for shape in shapes[:2] for size in shape):
        return 0
    x, weight = (listing.tensors[listing.index[name]].shape for name in _operands(operation)) if _operands(operation) else ((), ())
    if operation.type == "conv":
        return out * math.prod(weight[1:])
    if operation.type == "conv_transpose":
        return math.prod(x) * math.prod(weight[1:])
    return out * x[-1] if operation.type in ("linear", "matmul") and x else 0


def _steps(operation: spec.Operation, listing: _Listing) -> int:
    """Of a recurrent layer that reads [steps, batch, features]: every step takes all its weights."""
    sizes = {key: listing.tensors[listing.index[name]].shape for key, (name, *_) in operation.inputs.items() if name in listing.index}
    weights = sum(math.prod(size) for key, size in sizes.items() if key.startswith("weight_"))
    steps = math.prod(sizes.get("x", (0,))[:2])
    return max(0, steps) * weights


def _operands(operation: spec.Operation) -> tuple[str, ...]:
    second = "y" if operation.type == "matmul" else "weight"
    names = [b for key in ("x", second) for b in operation.inputs.get(key, ())]
    return tuple(n for n in names if isinstance(n, str)) if len(names) == 2 else ()
