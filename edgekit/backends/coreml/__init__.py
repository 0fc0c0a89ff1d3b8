"""The backend for Apple's devices: ML Program packages, written with coremltools and proven by edgekit's own interpreter of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgekit.backends import Artifact, Candidate, Context, Tap
from edgekit.formats import Model, Session
from edgekit.graph import Graph

name = "coreml"
takes_images = True
enumerates_shapes = True
accepts = ("mlprogram",)
precisions = ("fp32", "fp16", "w8", "w8a8", "p8", "p6", "p4", "w4", "s50", "s75", "s50-w8", "s50-p6")
"""`w8`: 8-bit linear weights; `p8`, `p6`, `p4`: weights from tables of 256, 64 and 16 values; `w4`: 4-bit steps with a scale for
each block of inputs; `s50`, `s75`: that share of the weights is zero and not stored; all of them compute in half precision."""


def own_precision(model: Model) -> str | None:
    """The precision of a package that is not float32, and is shipped as it is; None for a float32 program."""
    from edgekit.backends.coreml import build

    return build.own_precision(model)


def toolchain() -> None:
    """Import coremltools. Raises `MissingPackageError`."""
    from edgekit.formats import mlprogram_write

    mlprogram_write.coremltools()


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Read the float32 program once; the result builds one package a call. Raises `ConversionError`."""
    from edgekit.backends.coreml import build

    return build.prepare(model, context)


def emulate(artifact: Artifact) -> Session:
    """The package in the interpreter, as Core ML's CPU unit computes."""
    from edgekit.backends.coreml import build

    return build.emulate(artifact)


def graph(artifact: Artifact) -> Graph:
    """The operators of the package."""
    from edgekit.backends.coreml import build

    return build.graph(artifact)


def tapped(artifact: Artifact, out: Path) -> tuple[Artifact, tuple[Tap, ...]]:
    """A copy of a package at `out` that also gives every intermediate tensor as an output."""
    from edgekit.backends.coreml import taps

    return taps.tapped(artifact, out)


def trim(graph: Graph, folder: Path) -> dict[str, str]:
    """Nothing: Core ML is part of the system."""
    del graph, folder
    return {}
