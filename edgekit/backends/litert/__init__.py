"""The LiteRT backend: a float `.tflite` in every precision the stock interpreter runs, rounded and scaled by `edgekit.quantize`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from edgekit.backends import Artifact, Candidate, Context, Tap
from edgekit.backends.litert import build, half
from edgekit.backends.litert.running import Interpreter
from edgekit.formats import Model, Session
from edgekit.graph import Graph

name = "litert"
accepts = ("tflite",)
precisions = ("fp32", "fp16", "w8a16", "w8", "w8-dynamic", "w8a8")


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Read and check the model once; the result builds one artifact a call.

    An already integer model is passed through at its own precision. Raises `ConversionError`.
    """
    return build.prepare(_plain(model, context.workdir), context)


def own_precision(model: Model) -> str | None:
    """The precision of a model that is already quantized and keeps it; None for a float model."""
    return build.own_precision(model)


def exact_in_half(model: Model) -> bool:
    """Whether `fp16` stores the model's weights as they are."""
    return model.path is not None and half.holds_exactly(model.path.read_bytes(), model.name)


def tapped(artifact: Artifact, out: Path) -> tuple[Artifact, tuple[Tap, ...]]:
    """A copy of an artifact at `out` that also gives every intermediate tensor as an output."""
    from edgekit.backends.litert import taps

    return taps.tapped(artifact, out)


def emulate(artifact: Artifact) -> Session:
    """The artifact in the stock interpreter on this machine, in its stored types."""
    return Interpreter(artifact.path.read_bytes(), artifact.signature)


def graph(artifact: Artifact) -> Graph:
    """The operators of the artifact's file."""
    from edgekit.formats import tflite

    return tflite.graph(_model(artifact))


def trim(graph: Graph, folder: Path) -> dict[str, str]:
    """Write the inputs of LiteRT's selective build into `folder`; file name -> what it is for."""
    from edgekit.backends.litert import selective_build

    return selective_build.trim(graph, folder)


def _plain(model: Model, folder: Path) -> Model:
    """The model with static shapes and plain float32 weights, as the quantizer wants them; an integer model as it is."""
    from edgekit.formats import tflite

    if model.path is None or build.own_precision(model) is not None:
        return model
    static = tflite.fix_shapes(model, folder / "static.tflite") if getattr(model.handle, "resize", None) else model.path
    if not tflite.traits(static) & {"fp16-weights", "sparse-weights"}:
        return dataclasses.replace(model, path=static)
    return dataclasses.replace(model, path=tflite.to_float(static, folder / "float.tflite"))


def _model(artifact: Artifact) -> Model:
    import hashlib

    digest = hashlib.sha256(artifact.path.read_bytes()).hexdigest()
    return Model("tflite", artifact.path.stem, artifact.signature, digest, path=artifact.path)
