"""The values of recipe 1: what the user asked for, what stays the same through one packaging, what was built, what came of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgekit.backends import Artifact, Backend
from edgekit.budget import Limits, Part, Usage
from edgekit.formats import Model
from edgekit.manifest import Manifest
from edgekit.parity import Finding, OutputParity
from edgekit.planner import Point, Prefer
from edgekit.preprocess import Preprocess
from edgekit.progress import Progress
from edgekit.quantize.ranges import Asked
from edgekit.reference import Reference
from edgekit.samples import Samples
from edgekit.target import Target


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user asked for; see `edgekit package --help`. `out` is a folder, or a file that ends in `.edgekit`.

    `others` are more shapes of inputs that the artifact is to take, as many for each input that has any.
    """

    inputs: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    others: dict[str, tuple[tuple[int, ...], ...]] = dataclasses.field(default_factory=dict)
    calibration: str | None = None
    preprocess: Preprocess | None = None
    precision: str = "auto"
    rounding: str = "second-order"
    ranges: Asked = "auto"
    prefer: Prefer = "fidelity"
    min_sqnr_db: float | None = None
    io: str = "float32"
    limits: Limits = dataclasses.field(default_factory=Limits)
    board: str = ""
    runtime_aar: Path | None = None
    name: str = ""
    out: Path = dataclasses.field(default_factory=Path)
    rebuild: bool = False


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of it. `bundle` is the file written, none when a limit or tolerance broke; `findings` say which. `unchanged`: a repeat."""

    bundle: Path | None
    manifest: Manifest
    findings: tuple[Finding, ...] = ()
    unchanged: bool = False

    @property
    def passed(self) -> bool:
        """Whether a bundle within every bound was written."""
        return self.bundle is not None


@dataclasses.dataclass(frozen=True)
class Job:
    """What stays the same through one packaging."""

    target: Target
    backend: Backend
    options: Options
    reference: Reference
    data: Samples
    runtime: tuple[Part, ...]
    work: Path
    progress: Progress

    @property
    def source(self) -> Model:
        """The float model that all is compared with."""
        return self.reference.model

    @property
    def name(self) -> str:
        """The bundle's name."""
        return self.options.name or self.source.name


@dataclasses.dataclass(frozen=True)
class Built:
    """A candidate that was built: its artifact, what it measured, and how its outputs compare with the float source."""

    artifact: Artifact
    point: Point
    usage: Usage
    loss: tuple[OutputParity, ...]


def shapes_of(others: Mapping[str, Sequence[tuple[int, ...]]]) -> list[dict[str, tuple[int, ...]]]:
    """Shapes by input name, one dict for each shape that an artifact takes beside the first."""
    return [dict(zip(others, row, strict=True)) for row in zip(*others.values(), strict=True)]
