"""The float source model on this machine: what every conversion, candidate and device is compared with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from edgekit import formats, hops
from edgekit.formats import Model, Session, tflite
from edgekit.tensors import Array, Arrays


@dataclasses.dataclass(frozen=True)
class Reference:
    """Runs `model` on samples in real values, each sample once however often it is asked for.

    With `stream`, for a `.tflite` that keeps state, it is carried from sample to sample, and every call starts afresh: as a device runs them.
    """

    model: Model
    stream: bool = False
    _known: dict[int, tuple[Arrays, dict[str, Array]]] = dataclasses.field(default_factory=dict, repr=False)

    @functools.cached_property
    def session(self) -> Session:
        """The model, ready to run."""
        return formats.session(self.model)

    def run(self, samples: Sequence[Arrays]) -> list[dict[str, Array]]:
        """Outputs by name, a row a sample."""
        if self.stream:
            return hops.run(tflite.session(self.model, keep_state=True), self.model.signature, samples)
        fresh = [sample for sample in samples if id(sample) not in self._known]
        for sample, outputs in zip(fresh, hops.run(self.session, self.model.signature, fresh), strict=True):
            self._known[id(sample)] = (sample, outputs)  # the sample is kept, so that its id stays its own
        return [self._known[id(sample)][1] for sample in samples]
