"""Chains of RESHAPE and TRANSPOSE in a float `.tflite` that lead back to where they came from, as a converter from channels-first leaves them.

What a chain does to every element is computed, not argued: a chain that keeps the order of all elements is one RESHAPE.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.legalize.tflite_dense import join_reshapes, reshape
from edgekit.tensors import Array

SHAPES = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS"})
MOST_ELEMENTS = 1 << 22
"""Larger tensors are left as they are."""


@dataclasses.dataclass(frozen=True)
class _Moved:
    """A tensor as the elements of `root` in other places: `order`, in the tensor's shape, is where each was; `steps` counts operators between."""

    root: int
    order: Array
    steps: int


def shorten(model: Any) -> tuple[str, ...]:
    """Rewrite the chains of a parsed model, and the operators that need none of them. The names of what they led to, where that changed."""
    graph, changed = model.subgraphs[0], list[str]()
    moved: dict[int, _Moved] = {}
    before, graph.operators = graph.operators, []
    for operator in before:
        name = flatbuffer.text(graph.tensors[int(operator.outputs[0])].name) if len(operator.outputs) else ""
        steps = _follow(model, graph, operator, moved) if len(operator.outputs) == 1 else None
        changed += [] if steps is None else [name]
        graph.operators += [operator] if steps is None else steps
    _forget(model, graph)
    while join_reshapes(model, graph):
        continue
    return tuple(changed)


def _follow(model: Any, graph: Any, operator: Any, moved: dict[int, _Moved]) -> list[Any] | None:
    """What stands in for an operator, None where that is itself; what it moves is noted."""
    kind, out = flatbuffer.op_name(model, operator), int(operator.outputs[0])
    if kind in SHAPES or kind == "TRANSPOSE":
        return _chain(model, graph, operator, moved, out)
    return _mean(model, graph, operator, moved, out) if kind == "MEAN" else None


def _chain(model: Any, graph: Any, operator: Any, moved: dict[int, _Moved], out: int) -> list[Any] | None:
    import numpy as np

    given = int(operator.inputs[0])
    if not _sized(graph, given) or not _sized(graph, out):
        return None
    held = moved.get(given) or _Moved(given, np.arange(_size(graph, given)).reshape(_shape(graph, given)), 0)
    order = held.order
    if flatbuffer.op_name(model, operator) == "TRANSPOSE":
        axes = flatbuffer.constant(model, graph.tensors[int(operator.inputs[1])])
        if axes is None:
            return None
        order = order.transpose([int(axis) for axis in axes.reshape(-1)])
    found = _Moved(held.root, order.reshape(_shape(graph, out)), held.steps + 1)
    moved[out] = found
    if found.steps < 2 or not np.array_equal(order.reshape(-1), np.arange(order.size)):
        return None
    return [reshape(model, graph, held.root, out)]


def _mean(model: Any, graph: Any, operator: Any, moved: dict[int, _Moved], out: int) -> list[Any] | None:
    """A mean over places of a map, wherever they were moved: the map's own, over height and width."""
    import numpy as np

    held, axes = moved.get(int(operator.inputs[0])), flatbuffer.constant(model, graph.tensors[int(operator.inputs[1])])
    if held is None or axes is None or len(_shape(graph, held.root)) != 4:
        return None
    batch, height, width, channels = _shape(graph, held.root)
    over = sorted({int(axis) % held.order.ndim for axis in axes.reshape(-1)})
    rest = [axis for axis in range(held.order.ndim) if axis not in over]
    groups = held.order.transpose([*rest, *over]).reshape(-1, int(np.prod([held.order.shape[axis] for axis in over])))
    own = np.arange(held.order.size).reshape(batch, height * width, channels).transpose(0, 2, 1).reshape(-1, height * width)
    if groups.shape != own.shape or not np.array_equal(np.sort(groups, 1), np.sort(own, 1)):
        return None
    both, whole, direct = flatbuffer.schema().TensorT(), copy.copy(graph.tensors[out]), copy.copy(operator)
    name = flatbuffer.text(whole.name).encode()
    both.name, both.type, both.shape = name + b"/axes", flatbuffer.schema().TensorType.INT32, [2]
    both.buffer = flatbuffer.add_constant(model, np.array([1, 2], np.int32))
    whole.shape, whole.name = [batch, 1, 1, channels], name + b"/map"
    if out not in [int(i) for i in graph.outputs]:  # a layer is known by the name of what it writes
        whole.name, graph.tensors[out].name = name, name + b"/rows"
    graph.tensors += [both, whole]
    direct.inputs, direct.outputs = [held.root, len(graph.tensors) - 2], [len(graph.tensors) - 1]
    direct.builtinOptions = copy.copy(operator.builtinOptions) or flatbuffer.schema().ReducerOptionsT()
    direct.builtinOptions.keepDims = True
    return [direct, reshape(model, graph, len(graph.tensors) - 1, out)]


def _forget(model: Any, graph: Any) -> None:
    """Leave out operators that nothing reads any more."""
    kinds = SHAPES | {"TRANSPOSE"}
    while True:
        read = {int(i) for o in graph.operators for i in o.inputs} | {int(i) for i in graph.outputs}
        kept = [o for o in graph.operators if flatbuffer.op_name(model, o) not in kinds or int(o.outputs[0]) in read]
        if len(kept) == len(graph.operators):
            return
        graph.operators = kept


def _sized(graph: Any, tensor: int) -> bool:
    found = graph.tensors[tensor]
    float32 = found.type == flatbuffer.schema().TensorType.FLOAT32
    return float32 and found.shape is not None and found.shapeSignature is None and _size(graph, tensor) <= MOST_ELEMENTS


def _shape(graph: Any, tensor: int) -> list[int]:
    return [int(n) for n in graph.tensors[tensor].shape]


def _size(graph: Any, tensor: int) -> int:
    size = 1
    for n in _shape(graph, tensor):
        size *= n
    return size
