"""The backend for Qualcomm's Hexagon NPUs: QDQ ONNX and its context binary, proven on the HTP simulator with CPU fallback disabled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgekit.backends import Artifact, Candidate, Context
from edgekit.formats import Model, Session
from edgekit.graph import Graph

name = "qnn"
accepts = ("onnx",)
precisions = ("fp16", "mixed", "a16w8", "a8w8", "a16w4", "a8w4")


def own_precision(model: Model) -> str | None:
    """None for a float model; quantized ones are refused by `prepare`."""
    del model
    return None


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Simplify and measure the model once; the result builds one artifact (a folder) a call. Raises `ConversionError`."""
    from edgekit.backends.qnn import build

    return build.prepare(model, context)


def emulate(artifact: Artifact) -> Session:
    """The artifact on the HTP simulator, every operator there."""
    from edgekit.backends.qnn import simulated

    return simulated.emulate(artifact)


def graph(artifact: Artifact) -> Graph:
    """The operators of the artifact's QDQ model."""
    from edgekit.backends.qnn import view

    return view.graph(artifact.path)


def trim(graph: Graph, folder: Path) -> dict[str, str]:
    """Nothing: the provider is not built by operator."""
    del graph, folder
    return {}
