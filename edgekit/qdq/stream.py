"""Running a float graph a stretch at a time on all samples, and all at once with every activation readable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit.errors import ConversionError
from edgekit.progress import Progress
from edgekit.qdq import protos
from edgekit.quantize.grid import Affine
from edgekit.quantize.ranges import Histogram, histogram
from edgekit.quantize.stream import Stream
from edgekit.tensors import Array, Arrays

VALUES = 65536
"""Values of an activation that are kept over all samples, for its histogram."""

MASK, PLAIN = 9999.0, 100.0
"""Values at least this large, where all others are smaller than that, are masks (-1e4, -65504, -1e9): they say «not this one» and are no data."""

BEYOND_MASK = 16.0
"""How far past the data a mask still reaches: exp(-16) is 1e-7, nothing in 16 bits."""


def over(proto: Any, samples: Sequence[Arrays], folder: Path, grids: Mapping[str, Affine] | None = None) -> Stream[str]:
    """All samples at the beginning of a graph, whose nodes then run with their constants as they are at that time."""
    nodes = proto.graph.node
    operators = [(filter(None, node.input), filter(None, node.output)) for node in nodes]
    inputs = {value.name for value in proto.graph.input}

    def stretch(start: int, stop: int, fed: Mapping[str, Array], kept: Sequence[str]) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
        runner = protos.session(protos.part(proto, start, stop, fed, kept))
        return lambda values: dict(zip(kept, runner.run(list(kept), dict(values)), strict=True))

    given = ({name: sample[name] for name in inputs & set(sample)} for sample in samples)
    return Stream(operators, (), given, grids or {}, folder, stretch)


def taps(proto: Any, names: Sequence[str]) -> Callable[[Arrays], dict[str, Array]]:
    """A function from one sample to the named activations (inputs of the graph among them)."""
    import onnx

    inputs = {value.name for value in proto.graph.input}
    tapped, wanted = protos.copy(proto), [name for name in names if name not in inputs]
    del tapped.graph.output[:]
    tapped.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    runner = protos.session(tapped) if wanted else None

    def run(sample: Arrays) -> dict[str, Array]:
        fed = {name: sample[name] for name in inputs & set(sample)}
        values = dict(zip(wanted, runner.run(wanted, fed), strict=True)) if runner else {}
        return {name: fed[name] if name in fed else values[name] for name in names}

    return run


def activations(proto: Any) -> list[str]:
    """The float32 values of a graph that are fed or computed, in execution order. Types are those that onnx infers."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    known = {v.name: v.type.tensor_type.elem_type for v in (*inferred.input, *inferred.value_info, *inferred.output)}
    stored = {tensor.name for tensor in proto.graph.initializer}
    names = [v.name for v in proto.graph.input] + [name for node in proto.graph.node for name in node.output if name]
    return [name for name in dict.fromkeys(names) if name not in stored and known.get(name) == onnx.TensorProto.FLOAT]


def histograms(proto: Any, samples: Sequence[Arrays], progress: Progress) -> dict[str, Histogram]:
    """How the values of every float activation are spread: true extremes, and the counts of a sample of them.

    Raises `ConversionError` when an activation is not a number. Infinities and masks are no data: they are left out, and the range reaches
    `BEYOND_MASK` past the data on their side.
    """
    import numpy as np

    names = activations(proto)
    run = taps(proto, names)
    ends: dict[str, tuple[float, float]] = dict.fromkeys(names, (0.0, 0.0))
    masked = {name: [False, False] for name in names}
    picked: dict[str, list[Array]] = {name: [] for name in names}
    for number, sample in enumerate(samples):
        progress(number, len(samples), "measure ranges")
        for name, values in run(sample).items():
            flat = _data(values, name, masked[name])
            if flat.size:
                ends[name] = (min(ends[name][0], float(flat.min())), max(ends[name][1], float(flat.max())))
                picked[name].append(_pick(flat, -(-VALUES // len(samples)), number))
    empty = np.zeros(0, np.float32)
    past = {name: (low - BEYOND_MASK * masked[name][0], high + BEYOND_MASK * masked[name][1]) for name, (low, high) in ends.items()}
    return {name: histogram(np.concatenate([empty, *picked[name]]), *past[name]) for name in names}


def _data(values: Array, name: str, masked: list[bool]) -> Array:
    """The values that are no masks, flat; `masked` learns on which sides there were some."""
    import numpy as np

    flat = values.reshape(-1)
    if np.isnan(flat).any():
        raise ConversionError(f"{name}: the float model computes NaN on a calibration sample", "check the calibration data and its preprocessing")
    size = np.abs(flat)
    if size.max(initial=0) < MASK:
        return flat
    plain = size < MASK
    if size[plain].max(initial=0) >= PLAIN or not plain.any():  # large values of all sizes are data
        plain = size < 3e38
    masked[0] |= bool((flat[~plain] < 0).any())
    masked[1] |= bool((flat[~plain] > 0).any())
    return flat[plain]


def _pick(flat: Array, count: int, seed: int) -> Array:
    import numpy as np

    return flat.copy() if flat.size <= count else flat[np.random.default_rng(seed).integers(0, flat.size, count)]
