"""The linear layers of a prepared ML Program as the quantization core sees them, and samples of what they read."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from edgekit.quantize.moments import Layer, from_matrix, to_matrix
from edgekit.tensors import Array
from edgekit.virtual.coreml.kernels.arguments import flag, integer, ints
from edgekit.virtual.coreml.kernels.conv import spatial_pads
from edgekit.virtual.coreml.plan import Plan, Step

KINDS = {"conv": "weight", "linear": "weight", "matmul": "y"}
"""Operators with a constant weight, and the parameter that holds it."""

RECURRENT = dict.fromkeys(("lstm", "gru", "rnn"), ("weight_ih", "weight_hh", "weight_ih_back", "weight_hh_back"))
TAKEN = {**RECURRENT, "conv_transpose": ("weight",), "gather": ("x",)}
"""Operators with weights that are stored as those of layers are, but not rounded by data: recurrent ones, transposed ones, embeddings."""


@dataclasses.dataclass(frozen=True)
class MilLayer:
    """An operator with a constant weight.

    `layer` is its own name, `name` its result's, `axis` the weight's output axis, `input` what it reads.
    """

    place: int
    kind: str
    name: str
    layer: str
    input: str
    parameter: str
    axis: int
    groups: int

    def linear(self, step: Step) -> Layer:
        """Weights [outputs, k] and bias (zero where there is none) as the core wants them."""
        import numpy as np

        weight = self.to_matrix(step.constants[self.parameter].numpy())
        bias = step.constants.get("bias")
        return Layer(weight, np.zeros(weight.shape[0], np.float32) if bias is None else bias.numpy().reshape(-1), self.groups)

    def to_matrix(self, weight: Array) -> Array:
        """A stored weight as [outputs, k]."""
        return to_matrix(weight, self.axis)

    def from_matrix(self, matrix: Array, shape: tuple[int, ...]) -> Array:
        """[outputs, k] back in the stored layout."""
        return from_matrix(matrix, shape, self.axis)


def find(plan: Plan) -> list[MilLayer]:
    """The linear layers of a program's main block, in execution order; those of control-flow bodies are left as they are."""
    found = []
    for place, step in enumerate(plan.steps):
        parameter = KINDS.get(step.operation.type, "")
        reads = step.variables.get("x", ())
        if parameter in step.constants and len(step.variables) == 1 and len(reads) == 1 and isinstance(reads[0], str):
            layer = _describe(place, step, parameter, reads[0])
            if layer:
                found.append(layer)
    return found


def find_taken(plan: Plan) -> list[MilLayer]:
    """The weights of `TAKEN` operators of the main block, each as a layer that reads nothing."""
    return [
        MilLayer(place, step.operation.type, step.operation.outputs[0].name, step.operation.name, "", parameter, axis, 1)
        for place, step in enumerate(plan.steps)
        for axis in (1 if step.operation.type == "conv_transpose" else 0,)
        for parameter in TAKEN.get(step.operation.type, ())
        if _is_weight(step.constants.get(parameter))
    ]


def _is_weight(value: Any) -> bool:
    return value is not None and value.is_floating_point() and value.dim() > 1


def _describe(place: int, step: Step, parameter: str, read: str) -> MilLayer | None:
    kind, weight = step.operation.type, step.constants[parameter]
    if not weight.is_floating_point() or weight.dim() < 2 or (kind == "matmul" and weight.dim() != 2):
        return None
    if kind == "matmul" and flag(step.constants.get("transpose_x", False)):
        return None
    axis = 1 if kind == "matmul" and not flag(step.constants.get("transpose_y", False)) else 0
    groups = integer(step.constants.get("groups", 1)) if kind == "conv" else 1
    return MilLayer(place, kind, step.operation.outputs[0].name, step.operation.name, read, parameter, axis, groups)


def columns(layer: MilLayer, step: Step, values: Array, count: int, seed: int) -> Array:
    """What the layer's kernel sees at `count` output positions: float32 [groups, samples, k]. The same seed picks the same positions."""
    import numpy as np

    random = np.random.default_rng(seed)
    if layer.kind != "conv":
        rows = values.reshape(-1, values.shape[-1])
        return rows[_pick(random, rows.shape[0], count)][None]
    patches = _patches(step, values, random, count)
    samples, channels, taps = patches.shape
    split = patches.reshape(samples, layer.groups, channels // layer.groups * taps)
    return np.ascontiguousarray(split.transpose(1, 0, 2))


def _patches(step: Step, values: Array, random: Any, count: int) -> Array:
    """float32 [samples, channels, taps] of values [images, channels, *spatial]."""
    import numpy as np

    kernel = step.constants["weight"].shape[2:]
    strides, dilations = (ints(step.constants.get(name, [1] * len(kernel))) for name in ("strides", "dilations"))
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pad = step.constants.get("pad")
    pads = spatial_pads(step.constants.get("pad_type", "valid"), None if pad is None else ints(pad), values.shape[2:], extent, strides)
    padded = np.pad(values, [(0, 0), (0, 0), *pads])
    out = [(size - e) // s + 1 for size, e, s in zip(padded.shape[2:], extent, strides, strict=True)]
    image, *start = np.unravel_index(_pick(random, values.shape[0] * math.prod(out), count), (values.shape[0], *out))
    taps = np.indices(tuple(kernel)).reshape(len(kernel), -1)
    at = [(s * stride)[:, None] + tap * d for s, stride, tap, d in zip(start, strides, taps, dilations, strict=True)]
    found: Array = np.moveaxis(padded, 1, -1)[(image[:, None], *at)].transpose(0, 2, 1)
    return found


def _pick(random: Any, available: int, count: int) -> Array:
    import numpy as np

    return np.arange(available) if available <= count else np.sort(random.choice(available, count, replace=False))
