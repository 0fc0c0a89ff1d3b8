"""The integer `.tflite` that a microcontroller's backend finishes: another backend makes it, by name, and it is held to what micro kernels take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from edgekit import plugins
from edgekit.backends import Artifact, Backend, Candidate, Context
from edgekit.formats import Model, tflite
from edgekit.graph import Graph
from edgekit.legalize import tflite_exact, tflite_islands, tflite_micro, tflite_tidy

QUANTIZER = "litert"
"""The backend that quantizes, unless `options.quantizer` of the profile names another."""


def own_precision(model: Model) -> str | None:
    """The precision of a model that is already quantized and keeps it; None for a float model."""
    return _quantizer(QUANTIZER).own_precision(model)


def prepare(model: Model, context: Context) -> Callable[[Candidate], tuple[Artifact, Graph]]:
    """Let the quantizer read the model once, prepared for micro kernels (means and dense layers as its profile says).

    The result builds one integer model a call, with its operators; a model that is integer already keeps its integers.
    Raises `ConversionError` where float operators or others that no micro kernel takes are left.
    """
    quantizer = _quantizer(context.target.options.get("quantizer", QUANTIZER))
    own = quantizer.own_precision(model)
    prepared, notices = tflite_micro.prepare(model, own, context.workdir, context.target.options)
    build = quantizer.prepare(prepared, dataclasses.replace(context, io="int8", integer=True))
    options = context.target.options

    def agreed(path: Path) -> tuple[str, ...]:
        """In forms that LiteRT and micro kernels agree on; an NPU has kernels of its own."""
        return tflite_exact.settle(path) if own is None else () if "npu" in options else tflite_exact.fit(path, options.get("core", ""))

    return lambda candidate: _held_to_integers(build(candidate), notices, agreed)


def _held_to_integers(made: Artifact, notices: tuple[str, ...], agreed: Callable[[Path], tuple[str, ...]]) -> tuple[Artifact, Graph]:
    said = tflite_islands.without(made.path, made.notices)
    said = (*said, *agreed(made.path))
    tflite_tidy.drop_unread(made.path)
    graph = tflite.graph(made.path)
    tflite_micro.refuse(graph, made.path.name)
    return dataclasses.replace(made, notices=(*notices, *said)), graph


def _quantizer(name: str) -> Backend:
    backend: Backend = plugins.load("edgekit.backends", name)
    return backend
