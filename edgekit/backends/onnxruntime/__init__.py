"""The backend for ONNX Runtime on Arm: float, half-size and 8-bit ONNX files, its `.ort` form, and the inputs of a reduced build."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgekit.backends import Artifact, Candidate, Context, Tap
from edgekit.formats import Model, Session
from edgekit.graph import Graph

name = "onnxruntime"
accepts = ("onnx",)
precisions = ("fp32", "fp16", "w8", "w8a8")


def own_precision(model: Model) -> str | None:
    """`w8a8` for a model with quantized activations, which is passed through; None for a float model."""
    from edgekit.backends.onnxruntime import build

    return build.own_precision(model)


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Simplify the model, rewrite what is written out, and measure it once; the result builds one artifact a call. Raises `ConversionError`."""
    from edgekit.backends.onnxruntime import build

    return build.prepare(model, context)


def emulate(artifact: Artifact) -> Session:
    """The artifact in ONNX Runtime on this machine, with the optimizations that a device's session does."""
    from edgekit.backends.onnxruntime import running

    return running.session(artifact.path, artifact.signature, artifact.runtime_names)


def graph(artifact: Artifact) -> Graph:
    """The operators of the artifact's file."""
    from edgekit.formats import _onnx_view

    return _onnx_view.read(artifact.path)


def tapped(artifact: Artifact, out: Path) -> tuple[Artifact, tuple[Tap, ...]]:
    """A copy of an artifact at `out` that also gives every intermediate float tensor as an output."""
    from edgekit.backends.onnxruntime import taps

    return taps.tapped(artifact, out)


def trim(graph: Graph, folder: Path) -> dict[str, str]:
    """What a reduced build would save; its inputs are written by `sources`, which runs the optimizer on the file itself."""
    from edgekit.backends.onnxruntime import reduced_build

    return reduced_build.estimate_file(graph, folder)


def sources(artifact: Artifact, folder: Path) -> dict[str, str]:
    """Write the `.ort` form and the operator lists of a reduced build into `folder`; file name -> what it is for."""
    from edgekit.backends.onnxruntime import reduced_build

    return reduced_build.sources(artifact.path, folder)
