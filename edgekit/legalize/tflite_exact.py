"""Dense layers and sums of an integer `.tflite` in forms on which LiteRT's reference kernels and microcontrollers' kernels agree to the byte.

LiteRT's reference FULLY_CONNECTED multiplies accumulators in double precision where weights have a scale for each channel or activations
16 bits; TFLM, CMSIS-NN and generated C multiply in fixed point, at times one step apart. Where the scales are ours to choose, weights get scales
with which both give the same (`quantize.exact`), at no price; what has none, and 16 bits, become convolutions, fixed point everywhere. Those of 16
bits have to: CMSIS-NN takes no dense layer of int16 with a scale for each channel.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.legalize import tflite_dense
from edgekit.quantize import exact
from edgekit.tensors import Array

KEPT = 1 / 256
"""Change of a scale up to which weights keep their integers; beyond it they are rounded anew."""
MOST_PRICE = 0.1
"""Instructions that convolutions may add, as a part of those of all layers, where a model's scales are not ours to choose."""
PRICE, PRICES = 1.5, {"cortex-m55": 0.0}
"""Instructions of a 1 x 1 convolution of one row beyond those of the dense layer, as a part of these: counted on an emulated Cortex-M4 (0.8 for 12
outputs, 1.1 for 256, 1.5 for 144 of 490 inputs), and on a Cortex-M55, where it takes 0.3 to 0.6 less.
"""
ROOM = 1.25
"""How much farther than now accumulators may reach under other scales: a bias grows as its scale shrinks."""


def settle(path: Path) -> tuple[str, ...]:
    """Rewrite a model that was quantized here in place; what to say of it."""
    model = flatbuffer.load(path.read_bytes(), path.name)
    graph, made = model.subgraphs[0], dict[Any, tuple[int, int]]()
    layers = [o for o in graph.operators if differs(model, graph, o)]
    left = [o for o in layers if not _rescale(model, graph, o, made)]
    return _written(model, path, tflite_dense.convolve(model, left)) if layers else ()


def fit(path: Path, core: str) -> tuple[str, ...]:
    """Rewrite in place a model that came with integers of its own, which stay; what to say of it.

    Sums become means, and dense layers of 16 bits convolutions; those of 8 bits where that costs little on `core`.
    """
    model = flatbuffer.load(path.read_bytes(), path.name)
    graph, int16 = model.subgraphs[0], flatbuffer.schema().TensorType.INT16
    layers = [o for o in graph.operators if differs(model, graph, o)]
    wide = [o for o in layers if graph.tensors[int(o.inputs[0])].type == int16]
    most = MOST_PRICE * sum(tflite_dense.products(graph, o) for o in graph.operators if flatbuffer.op_name(model, o) in tflite_dense.LINEAR)
    more = sum(PRICES.get(core, PRICE) * tflite_dense.products(graph, o) for o in layers if o not in wide)
    moved, summed = layers if more <= most else wide, average_sums(model)
    said = _written(model, path, tflite_dense.convolve(model, moved)) if moved or summed else ()
    return (*said, *(f"{name}: a sum is a mean on a scale as many times smaller, which LiteRT and TFLM agree on" for name in summed))


def average_sums(model: Any) -> tuple[str, ...]:
    """Make SUM of integers MEAN on the sum's scale divided by the count, which has the sum's integers; a RESHAPE gives these the sum's scale.

    LiteRT's reference kernel does not carry what exceeds the type, and TFLM's sums in float. The names of the layers changed.
    """
    graph, types, changed = model.subgraphs[0], flatbuffer.schema().TensorType, []
    for place, operator in reversed(list(enumerate(graph.operators))):
        kind = graph.tensors[int(operator.inputs[0])].type if flatbuffer.op_name(model, operator) == "SUM" else None
        axes = flatbuffer.constant(model, graph.tensors[int(operator.inputs[1])]) if kind in (types.INT8, types.INT16) else None
        if axes is None:
            continue
        source, out = (graph.tensors[int(i)] for i in (operator.inputs[0], operator.outputs[0]))
        count = math.prod(int(source.shape[axis]) for axis in {int(a) % len(source.shape) for a in axes.reshape(-1)})
        mean, scale = copy.copy(out), [float(out.quantization.scale[0]) / count]
        mean.name, mean.quantization = flatbuffer.text(out.name).encode() + b"/mean", copy.copy(out.quantization)
        mean.quantization.scale = scale
        graph.tensors.append(mean)
        step = tflite_dense.reshape(model, graph, len(graph.tensors) - 1, int(operator.outputs[0]))
        operator.opcodeIndex, operator.outputs = flatbuffer.op_code(model, "MEAN", 2), [int(step.inputs[0])]
        graph.operators.insert(place + 1, step)
        changed.append(flatbuffer.text(out.name))
    return tuple(reversed(changed))


def _written(model: Any, path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    flatbuffer.merge_buffers(model)
    flatbuffer.write(path, flatbuffer.dump(model))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (f"{', '.join(names[:3])}{more}: {tflite_dense.POINTWISE}",) if names else ()


def differs(model: Any, graph: Any, operator: Any) -> bool:
    """Whether LiteRT's reference kernel may be a step away from the others on an operator."""
    if flatbuffer.op_name(model, operator) != "FULLY_CONNECTED":
        return False
    types, (given, weights) = flatbuffer.schema().TensorType, (graph.tensors[int(i)] for i in operator.inputs[:2])
    if flatbuffer.constant(model, weights) is None or weights.type != types.INT8 or weights.quantization is None:
        return False
    scales = weights.quantization.scale
    return scales is not None and (given.type == types.INT16 or (given.type == types.INT8 and len(scales) > 1))


def _rescale(model: Any, graph: Any, operator: Any, made: dict[Any, tuple[int, int]]) -> bool:
    """Give a layer weights and a bias of scales with which all kernels agree, the same ones where layers need the same; whether there are such."""
    import numpy as np

    given, weights = (graph.tensors[int(i)] for i in operator.inputs[:2])
    scales = None if given.type == flatbuffer.schema().TensorType.INT16 else _scales(model, graph, operator)
    if scales is None:
        return False
    place, input_scale = _bias(operator), np.float32(given.quantization.scale[0])
    key = (int(operator.inputs[1]), place, scales.tobytes(), float(input_scale))
    if key not in made:
        change = np.asarray(weights.quantization.scale, np.float64) / scales
        bias = -1 if place < 0 else _stored(model, graph, place, change, input_scale * scales)
        rounded = np.abs(change - 1).max() > KEPT
        made[key] = (_stored(model, graph, int(operator.inputs[1]), change if rounded else None, scales), bias)
    weight, bias = made[key]
    operator.inputs = [int(operator.inputs[0]), weight, *([bias] if bias >= 0 else [])]
    return True


def _scales(model: Any, graph: Any, operator: Any) -> Array | None:
    """For each channel the nearest scale with which all kernels agree on everything that the channel can add up to; None where one has none."""
    import numpy as np

    given, weights, out = (graph.tensors[int(i)] for i in (operator.inputs[0], operator.inputs[1], operator.outputs[0]))
    reach = 255 * np.abs(flatbuffer.data(model, weights).astype(np.int64)).sum(axis=1)
    if _bias(operator) >= 0:
        bias = flatbuffer.constant(model, graph.tensors[_bias(operator)])
        if bias is None:
            return None
        reach += np.abs(bias.astype(np.int64))
    zero, ends = int(out.quantization.zeroPoint[0]), (float(given.quantization.scale[0]), float(out.quantization.scale[0]))
    scales = np.asarray(weights.quantization.scale, np.float32)
    found = [exact.weight_scale(scale, *ends, -128 - zero, 127 - zero, ROOM * float(far) + 1) for scale, far in zip(scales, reach, strict=True)]
    return None if any(scale is None for scale in found) else np.array(found, np.float32)


def _bias(operator: Any) -> int:
    return int(operator.inputs[2]) if len(operator.inputs) > 2 else -1


def _stored(model: Any, graph: Any, tensor: int, change: Array | None, scales: Array) -> int:
    """A constant of one row for each channel under other scales, its stored values times `change`, or as they are, in the same buffer."""
    import numpy as np

    found = copy.copy(graph.tensors[tensor])
    if change is not None:
        stored = flatbuffer.data(model, found)
        limit = 127 if stored.dtype == np.int8 else np.iinfo(stored.dtype).max
        moved = np.rint(stored * change.reshape(-1, *[1] * (stored.ndim - 1)))
        found.buffer = flatbuffer.add_constant(model, np.clip(moved, -limit, limit).astype(stored.dtype))
    found.quantization = flatbuffer.schema().QuantizationParametersT()
    found.quantization.scale, found.quantization.zeroPoint = np.asarray(scales, np.float32), np.zeros(len(scales), np.int64)
    found.quantization.quantizedDimension = 0
    graph.tensors.append(found)
    return len(graph.tensors) - 1
