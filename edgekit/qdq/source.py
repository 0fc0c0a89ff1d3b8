"""A float ONNX graph with its calibration sets, and what is computed from both once for every artifact built of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekit.formats import Model
from edgekit.progress import Progress, silent
from edgekit.qdq import equalized, rounding, stream
from edgekit.quantize.ranges import Histogram
from edgekit.tensors import Arrays, TensorSpec


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

    @functools.cached_property
    def seen(self) -> dict[str, Histogram]:
        """How the float activations are spread."""
        return stream.histograms(self.proto, self.samples, self.progress)

    @functools.cache  # noqa: B019  (one source lives as long as its builds)
    def weights(self, method: str, bits: int = 8) -> rounding.Weights:
        """The rounded float graph, once for all precisions that use it."""
        return rounding.round_weights(self.proto, self.samples, self.seen, self.workdir, method=method, bits=bits, progress=self.progress)
