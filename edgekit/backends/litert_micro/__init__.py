"""TensorFlow Lite Micro: a fully integer `.tflite`, the kernels it links, its arena measured by TFLM's own interpreter.

The integers come from another backend, by name (`options.quantizer` of the profile): this one finishes them for a microcontroller.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgekit.backends import Artifact, Candidate, Context
from edgekit.formats import Model, Session
from edgekit.graph import Graph

name = "litert_micro"
accepts = ("tflite",)
precisions = ("w8a16", "w8a8")
carries_state = True


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Read and check the model once; the result builds one artifact a call. Raises `ConversionError`."""
    from edgekit.backends.litert_micro import build

    return build.prepare(model, context)


def own_precision(model: Model) -> str | None:
    """The precision of a model that is already quantized and keeps it; None for a float model."""
    from edgekit.backends import integer_model

    return integer_model.own_precision(model)


def emulate(artifact: Artifact) -> Session:
    """The artifact in TFLM's interpreter on this machine, from its initial state; where an NPU takes part, the integers it was compiled from."""
    from edgekit.backends.litert_micro import build
    from edgekit.formats import tflm

    return tflm.Interpreter(build.integers(artifact.path), artifact.signature)


def graph(artifact: Artifact) -> Graph:
    """The operators of the artifact's file."""
    from edgekit.formats import tflite

    return tflite.graph(artifact.path)


def trim(graph: Graph, folder: Path) -> dict[str, str]:
    """Write the resolver's list of operators into `folder`; file name -> what it is for."""
    from edgekit.backends.litert_micro import resolver

    return resolver.write(graph, folder)


def sources(artifact: Artifact, folder: Path) -> None:
    """Write the firmware sources of an artifact into `folder`."""
    from edgekit.backends.litert_micro import build
    from edgekit.embed import tflm

    tflm.write(artifact.path.read_bytes(), graph(artifact), artifact.signature, build.arena_bytes(artifact.parts), folder)
