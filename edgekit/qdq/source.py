"""A float ONNX graph with its calibration sets, and what is computed from both once for every artifact built of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit.formats import Model
from edgekit.progress import Progress, silent
from edgekit.qdq import equalized, joins, layers, protos, rounding, sensitivity, spans, stream, write
from edgekit.quantize.choices import clearly_less
from edgekit.quantize.gathering import judging
from edgekit.quantize.grid import Affine
from edgekit.quantize.ranges import Histogram
from edgekit.quantize.sampling import spread
from edgekit.tensors import Arrays, TensorSpec

CLEARLY = 1.25
"""Error power (1 dB) from which equalized channels count as worse: rounding to nearest hides some of what they gain."""

JUDGES = 8
"""Samples that decide between two ways to round, where there are as many."""

BLOCKS_FROM = 21
"""The first operator set in which DequantizeLinear has blocks."""


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """`proto` is the canonical graph of `model`; `inputs` and `outputs` map the model's names to the graph's.

    `calibration` are input sets by the model's names; `workdir` is for scratch files, `progress` as in `backends.Context`.
    """

    model: Model
    proto: Any
    inputs: dict[str, str]
    outputs: dict[str, str]
    calibration: Sequence[Arrays]
    workdir: Path
    progress: Progress = silent

    @functools.cached_property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The graph's inputs, by its names; those of the model that nothing reads are not among them."""
        present = {value.name for value in self.proto.graph.input}
        named = ((self.inputs[spec.name], spec) for spec in self.model.signature.inputs)
        return tuple(TensorSpec(name, spec.shape, spec.dtype) for name, spec in named if name in present)

    def with_all_inputs(self, proto: Any) -> Any:
        """`proto` with those inputs of the model that nothing reads, so that an artifact takes what its signature lists."""
        import numpy as np
        import onnx

        present = {value.name for value in self.proto.graph.input}
        missing = [(self.inputs[spec.name], spec) for spec in self.model.signature.inputs if self.inputs[spec.name] not in present]
        made = protos.copy(proto) if missing else proto
        for name, spec in missing:
            kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
            made.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, spec.shape))
        return made

    @functools.cached_property
    def samples(self) -> list[Arrays]:
        """The calibration sets, by the graph's names and in its types."""
        given = {name: source for source, name in self.inputs.items()}
        return [{spec.name: sample[given[spec.name]].astype(spec.dtype) for spec in self.specs} for sample in self.calibration]

    @functools.cached_property
    def renamed(self) -> dict[str, str]:
        """Names of the model that are others in the graph."""
        return {was: now for was, now in {**self.inputs, **self.outputs}.items() if was != now}

    @functools.cached_property
    def level(self) -> tuple[Source, tuple[str, ...]]:
        """The same with channels of like reach, for activations of 8 bits, and the activations that gained."""
        proto, gained = equalized.equalized(self.proto, self.samples)
        return (dataclasses.replace(self, proto=proto) if gained else self), gained

    @functools.cache  # noqa: B019  (one source lives as long as its builds)
    def leveled(self, policy: write.Policy) -> tuple[Source, tuple[str, ...]]:
        """`level`, or this source where that makes the outputs clearly worse: judged on the grids of `policy` by weights rounded to nearest, which
        nothing is fitted to, on all samples.
        """
        if not self.level[1]:
            return self, ()
        worse, plain = (sensitivity.noise_of(self.proto, one.quantized("nearest", policy)[0], self.samples) for one in (self.level[0], self))
        return (self, ()) if worse > CLEARLY * plain else self.level

    @functools.cached_property
    def raised(self) -> Source | None:
        """The same in an operator set that has blocks of weights; None where that cannot be."""
        import onnx.version_converter

        if protos.opset(self.proto) >= BLOCKS_FROM:
            return self
        try:
            proto = protos.canonical(onnx.version_converter.convert_version(self.proto, BLOCKS_FROM))
            return dataclasses.replace(self, proto=onnx.shape_inference.infer_shapes(proto))
        except Exception:  # the converter raises types of its own
            return None

    @functools.cached_property
    def seen(self) -> dict[str, Histogram]:
        """How the float activations are spread."""
        return stream.histograms(self.proto, self.samples, self.progress)

    @functools.cached_property
    def joined(self) -> tuple[frozenset[str], tuple[str, ...]]:
        """Activations whose one grid would stand for unlike ranges, and notices that say so."""
        return joins.unlike(self.proto, self.seen)

    def ranges(self, policy: write.Policy) -> dict[str, Histogram]:
        """What grids of `policy` are made from."""
        return spans.widened(self.proto, self.seen) if policy.spans else self.seen

    @functools.cache  # noqa: B019  (one source lives as long as its builds)
    def weights(self, method: str, bits: int = 8, policy: write.Policy | None = None, blocks: bool = False) -> rounding.Weights:
        """The rounded float graph, once for all precisions that use it; with `policy`, by data on the grids that its activations will have."""
        grids, fine = dict[str, Affine](), policy.fine if policy else frozenset[str]()
        if fine and method == "nearest":
            return rounding.with_fine(self.weights("nearest", bits, blocks=blocks), self._finest, fine)
        if policy:
            grids = write.grids(write.write(self.weights("nearest", bits, blocks=blocks), self.ranges(policy), policy))
        given = self.proto, self.samples, self.seen, self.workdir
        return rounding.round_weights(*given, method=method, bits=bits, blocks=blocks, fine=fine, grids=grids, progress=self.progress)

    @functools.cached_property
    def _finest(self) -> rounding.Weights:
        """All weights in 16 bits, rounded to nearest."""
        names = frozenset(layer.weight for layer in layers.find(self.proto))
        return rounding.round_weights(self.proto, (), self.seen, self.workdir, method="nearest", fine=names)

    def quantized(self, method: str, policy: write.Policy, bits: int = 8, *, blocks: bool = False) -> tuple[Any, tuple[str, ...]]:
        """The QDQ graph, and notices about its weights: those rounded to nearest, where that is clearly better, sample by sample."""
        grids = policy if policy.bits == 8 and method != "nearest" else None
        fine = write.Policy(fine=policy.fine) if policy.fine else None
        weights, plain = self.weights(method, bits, grids, blocks), self.weights("nearest", bits, fine, blocks)
        made = write.write(weights, self.ranges(policy), policy)
        if weights is plain:
            return made, weights.notices
        nearest = write.write(plain, self.ranges(policy), policy)
        judges = [self.samples[index] for index in contest(len(self.samples))]
        if not clearly_less(*(sensitivity.noises(self.proto, one, judges) for one in (nearest, made))):
            return made, weights.notices
        return nearest, (f"{method} rounding is not used: nearest did better here, on {len(judges)} samples compared one by one",)

    def costs(self, policy: write.Policy, prices: Mapping[str, int] | None = None) -> dict[str, sensitivity.Cost]:
        """What each activation costs on the grids of `policy`; `prices` as in `sensitivity.measure`."""
        return sensitivity.measure(self.proto, self.quantized("nearest", policy)[0], self.samples, self.progress, prices)


def contest(count: int) -> tuple[int, ...]:
    """Numbers of the samples that decide between two ways to round: those held out of each layer's choices, where they are `JUDGES` or more.

    Of fewer samples all may decide, and so the held-out ones in part: in the end weights settle on all samples, and what two of them say is chance.
    """
    held_out = tuple(sorted(judging(count)))
    return held_out if len(held_out) >= JUDGES or not count else spread(count, min(count, JUDGES))
