"""Artifact families. A backend turns a model of a format it accepts into artifacts of chosen precision, and runs them on this machine.

Backends do not know one another. Third parties add one through the entry-point group `edgekit.backends`; built-ins take the same path.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from edgekit.budget import Limits, Part
from edgekit.formats import Model, Session
from edgekit.graph import Graph
from edgekit.planner import Candidate
from edgekit.preprocess import Preprocess
from edgekit.progress import Progress, silent
from edgekit.quantize.ranges import Asked
from edgekit.target import Target
from edgekit.tensors import Arrays, Signature

__all__ = ["Artifact", "Backend", "Candidate", "Context", "Tap"]


@dataclasses.dataclass(frozen=True)
class Artifact:
    """What the device's runtime loads: `path` is the file or folder, `signature` has stored dtypes, scales and the source's names and order.

    `runtime_names` maps a source name to the name the runtime knows, where they differ. `notices` tell what was traded or found.
    `sensitivity` lists (operator, dB lost, reason), worst first, where the backend measured it. `parts` is what the artifact takes where that
    is not the size of its files: flash of a microcontroller, kernels of the runtime that it needs, memory at run time. `spared` lists (operator,
    dB gained, bytes more) of those that alone were left in float, so that room within a limit can buy the best of them.
    """

    path: Path
    format: str
    signature: Signature
    candidate: Candidate
    runtime_names: dict[str, str] = dataclasses.field(default_factory=dict)
    notices: tuple[str, ...] = ()
    sensitivity: tuple[tuple[str, float, str], ...] = ()
    parts: tuple[Part, ...] = ()
    spared: tuple[tuple[str, float, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Context:
    """What a backend builds with.

    `calibration` are real-valued input sets of the model's signature; `io` is `float32`, `int8` or `image` (what crosses the artifact's edge):
    `preprocess` then says what becomes of a pixel. `workdir` is an empty folder that the caller removes; `progress(done, of, what)` may be called
    at any time. `limits` are for telling which of several ways would fit: the caller holds the artifact to them. `others` are more shapes that the
    artifact is to take, by input name. `ranges` is how those of 8-bit activations are chosen, `auto` by what does best.
    With `integer` no operator stays float for the sake of precision: the device computes in integers alone.
    """

    target: Target
    calibration: Sequence[Arrays]
    workdir: Path
    io: str = "float32"
    progress: Progress = silent
    limits: Limits = dataclasses.field(default_factory=Limits)
    preprocess: Preprocess | None = None
    others: Sequence[Mapping[str, tuple[int, ...]]] = ()
    ranges: Asked = "auto"
    integer: bool = False


class Tap(msgspec.Struct, frozen=True):
    """A tensor inside an artifact that a tapped copy gives as an output, and the operator that computes it."""

    tensor: str
    operator: int
    type: str


class Backend(Protocol):
    """One artifact family (a module can be one).

    What only some can is told by a further name:
    `tapped(artifact, out) -> (Artifact, tuple[Tap, ...])` shows the inside of an artifact, for `edgekit drift`;
    `sources(artifact, folder)` writes more files of the bundle's `trim/` folder: for firmware, or for a selective build that starts from the model;
    `carries_state = True`: sessions keep the state of a model from sample to sample;
    `exact_in_half(model) -> bool` tells that `fp16` stores a model's weights as they are, so that `fp32` has nothing to give;
    `toolchain()` imports what conversions to its formats need, where that takes long: it is called while calibration files are read;
    `takes_images = True`: inputs may be images; `enumerates_shapes = True`: artifacts take several listed shapes.
    """

    name: str
    accepts: tuple[str, ...]
    """Model formats it builds from, best first."""
    precisions: tuple[str, ...]
    """Precisions it can build, most faithful first."""

    def own_precision(self, model: Model) -> str | None:
        """The precision of a model that is already quantized and keeps it; None for a float model."""

    def prepare(self, model: Model, context: Context) -> Callable[[Candidate], Artifact]:
        """Do once what all candidates share; the result builds one artifact a call. Raises `ConversionError`."""

    def emulate(self, artifact: Artifact) -> Session:
        """The artifact, or its twin, on this machine. Inputs and outputs are in the artifact's stored types, by source name."""

    def graph(self, artifact: Artifact) -> Graph:
        """The operators of the final artifact."""

    def trim(self, graph: Graph, folder: Path) -> dict[str, str]:
        """Write the inputs of the runtime's own selective build into `folder`; file name -> what it is for."""
