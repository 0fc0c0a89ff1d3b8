"""The float model as the backend sees it: checked once, its edges named like the source's, its activations' ranges measured once."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from edgekit.backends import Context
from edgekit.backends.litert import bounds, fuse, layers, running, signatures, ties
from edgekit.backends.litert.stock import Range, Ranges
from edgekit.errors import ConversionError
from edgekit.formats import Model
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize.ranges import Histogram, Method, choose, histogram
from edgekit.quantize.sampling import spread
from edgekit.tensors import Array, Arrays

MOVING_AVERAGE = 0.95
"""The smoothing of the stock quantizer's own calibration (ai-edge-quantizer 0.10, `moving_average_update`)."""

JUDGES = 32
"""Most samples that judge a whole artifact."""

ROOM_16 = 1.5
"""Room beyond the extremes of 16-bit activations: it costs half a bit of sixteen, and clipping costs far more."""

MOST_ROOM_8 = 0.25
"""Most room beyond the extremes of 8-bit ones, for a single sample; the next of n samples exceeds them with a chance of 1 / (n + 1)."""

VALUES = 65536
"""Values of an activation that are kept over all samples, for its histogram."""


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A float `.tflite` ready to be built from; `content` has unique tensor names and the source's names at its edges."""

    model: Model
    context: Context
    content: bytes
    as_given: bool
    made: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once for all candidates."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    @functools.cached_property
    def samples(self) -> tuple[Arrays, ...]:
        """The calibration input sets."""
        return tuple(self.context.calibration)

    @property
    def extremes(self) -> dict[str, Array]:
        """Minimum and maximum of every float activation in every sample: tensor name -> float64 [samples, 2]."""
        return self._measured[0]

    @functools.cached_property
    def histograms(self) -> dict[str, Histogram]:
        """How the values of every float activation are spread, from a sample of `VALUES` of them, by tensor name.

        Values that no reader tells from its ends (`bounds`) count as those.
        """
        import numpy as np

        extremes, picked = self._measured
        ends = bounds.of_readers(self.fresh())
        found = {}
        for name, values in picked.items():
            low, high = ends.get(name, (-math.inf, math.inf))
            seen = np.clip([extremes[name][:, 0].min(), extremes[name][:, 1].max()], low, high)
            found[name] = histogram(np.clip(values, low, high), float(seen[0]), float(seen[1]))
        return found

    @functools.cached_property
    def _measured(self) -> tuple[dict[str, Array], dict[str, Array]]:
        return measure(self.content, self.model, self.samples, self.context)

    @functools.cached_property
    def judges(self) -> tuple[Arrays, ...]:
        """Input sets that judge whole artifacts against each other: at most `JUDGES`, spread over all."""
        return tuple(self.samples[i] for i in spread(len(self.samples), min(len(self.samples), JUDGES))) if self.samples else ()

    @functools.cached_property
    def reference(self) -> tuple[dict[str, Array], ...]:
        """The float model's outputs on `judges`."""
        session = running.Interpreter(self.content, self.model.signature)
        return tuple(session.run(sample) for sample in self.judges)

    def fresh(self) -> Any:
        """A new mutable `ModelT` of the float model."""
        return flatbuffer.load(self.content, self.model.name)


def open_source(model: Model, context: Context) -> Source:
    """Read the model's file. Raises `ConversionError` for a damaged one, or for a custom or dynamic-length construct at its edges."""
    if model.path is None:
        raise ConversionError(f"{model.name}: the LiteRT backend builds from a .tflite file")
    given = model.path.read_bytes()
    parsed = flatbuffer.load(given, model.name)
    before = _names(parsed)
    pools = context.target.options.get("means") == "pools"  # where the runtime has no integer mean
    rewritten = [fuse.fuse_activations(parsed), not pools and fuse.means_for_pools(parsed), layers.separate_biases(parsed)]
    changed = any([*rewritten, layers.forget_unread(parsed)])
    signatures.rename_edges(parsed, model.signature)
    as_given = before == _names(parsed) and not changed
    return Source(model, context, given if as_given else flatbuffer.dump(parsed), as_given)


def measure(content: bytes, model: Model, samples: tuple[Arrays, ...], context: Context) -> tuple[dict[str, Array], dict[str, Array]]:
    """Extremes of every float activation of the main graph in every sample, float64 [samples, 2], and a sample of its values, by name.

    Padding constants that stand for infinity (beyond 3e38) are no data and are left out, as the stock calibration does. Raises
    `ConversionError` when an activation is not a number.
    """
    import numpy as np

    parsed = flatbuffer.load(content)
    names = {index: flatbuffer.text(parsed.subgraphs[0].tensors[index].name) for index in running.activations(parsed)}
    extremes: dict[str, list[tuple[float, float]]] = {name: [] for name in names.values()}
    picked: dict[str, list[Array]] = {name: [] for name in names.values()}
    session = running.Interpreter(content, model.signature, keep_all=True)
    for number, sample in enumerate(samples):
        context.progress(number, len(samples), "measure ranges")
        session.run(sample)
        for index, name in names.items():
            values = session.tensor(index)
            if values is not None and values.size:
                extremes[name].append(_extremes(values, name))
                picked[name].append(_pick(values, -(-VALUES // len(samples)), number))
    found = [name for name, rows in extremes.items() if rows]
    return {name: np.array(extremes[name], np.float64) for name in found}, {name: np.concatenate(picked[name]) for name in found}


def chosen_ranges(source: Source, method: Method, bits: int) -> Ranges:
    """The ranges that `method` of `edgekit.quantize.ranges` chooses; those of extremes with room for what no sample showed."""
    room = 1.0 if method != "minmax" else ROOM_16 if bits == 16 else 1 + min(1 / len(source.samples), MOST_ROOM_8)
    found = {}
    for name, _, rank in _ranked(source):
        low, high = choose(source.histograms[name], method, bits=bits, symmetric=bits == 16)
        found[name] = Range(low * room, high * room, rank)
    return _alike(source, found)


def averaged_ranges(source: Source) -> Ranges:
    """The stock quantizer's own: a moving average over the samples in order, which clips whatever a single sample reaches beyond it."""
    result = {}
    for name, rows, rank in _ranked(source):
        low, high = rows[0]
        for row in rows[1:]:
            low, high = MOVING_AVERAGE * low + (1 - MOVING_AVERAGE) * row[0], MOVING_AVERAGE * high + (1 - MOVING_AVERAGE) * row[1]
        result[name] = Range(float(low), float(high), rank)
    return _alike(source, result)


def _alike(source: Source, ranges: Ranges) -> Ranges:
    """As they are, or, where everything becomes integers, one for the steps of a layer that is written out."""
    return ties.alike(source.fresh(), ranges) if source.context.integer else ranges


def _ranked(source: Source) -> list[tuple[str, Array, int]]:
    graph = source.fresh().subgraphs[0]
    ranks = {flatbuffer.text(tensor.name): 0 if tensor.shape is None else len(tensor.shape) for tensor in graph.tensors}
    return [(name, rows, ranks[name]) for name, rows in source.extremes.items()]


def _extremes(values: Array, name: str) -> tuple[float, float]:
    import numpy as np

    low, high = float(values.min()), float(values.max())
    if low != low or high != high:
        raise ConversionError(f"{name}: the float model computes NaN on a calibration sample", "check the calibration data and its preprocessing")
    if low < -3e38 or high > 3e38:
        finite = values[np.abs(values) < 3e38]
        return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return low, high


def _pick(values: Array, count: int, seed: int) -> Array:
    import numpy as np

    flat = values.reshape(-1)
    return flat.copy() if flat.size <= count else flat[np.random.default_rng(seed).integers(0, flat.size, count)]


def _names(parsed: Any) -> list[tuple[str, ...]]:
    graph = parsed.subgraphs[0]
    tensors = [flatbuffer.text(tensor.name) for g in parsed.subgraphs for tensor in g.tensors]
    edges = [str(index) for index in (*graph.inputs, -1, *graph.outputs)]
    signatures = [f"{flatbuffer.text(e.name)}={e.tensorIndex}" for d in parsed.signatureDefs or [] for e in (*d.inputs, *d.outputs)]
    return [tuple(tensors), tuple(edges), tuple(signatures)]
