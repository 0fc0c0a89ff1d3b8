"""C11 without heap or interpreter: bakenn writes the layers (with CMSIS-NN where the core has DSP), a few lines here the end of the graph.

The integers come from another backend, by name (`options.quantizer` of the profile). The artifact is a folder behind the interface of `apps/mcu`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgekit.backends import Artifact, Candidate, Context
from edgekit.formats import Model, Session
from edgekit.graph import Graph

name = "micro_c"
accepts = ("tflite",)
precisions = ("w8a8",)
carries_state = True


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Read and check the model once; the result builds one artifact a call. Raises `ConversionError`."""
    from edgekit.backends.micro_c import build

    return build.prepare(model, context)


def own_precision(model: Model) -> str | None:
    """The precision of a model that is already quantized and keeps it; None for a float model."""
    from edgekit.backends import integer_model

    return integer_model.own_precision(model)


def emulate(artifact: Artifact) -> Session:
    """The generated C, compiled for this machine: its plain form, which CMSIS-NN equals to the byte."""
    from edgekit.backends.micro_c import build, host

    return host.Compiled(build.twin(artifact.path), artifact.signature)


def graph(artifact: Artifact) -> Graph:
    """The operators of the integer model that the C was generated from."""
    from edgekit.backends.micro_c import build
    from edgekit.formats import tflite

    return tflite.graph(build.integers(artifact.path))


def trim(_graph: Graph, _folder: Path) -> dict[str, str]:
    """Nothing to trim: the code holds what the model needs and no more."""
    return {}
