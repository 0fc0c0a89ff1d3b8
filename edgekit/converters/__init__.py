"""One module per hop. Each has `SOURCE`, `RESULT` (formats) and `convert(model, workdir) -> Model`; the set is closed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

from edgekit.errors import ConversionError

HOPS = {
    ("torch", "tflite"): "torch_to_litert",
    ("keras", "tflite"): "keras_to_litert",
    ("savedmodel", "tflite"): "savedmodel_to_litert",
    ("onnx", "tflite"): "onnx_to_litert",
    ("torch", "onnx"): "torch_to_onnx",
    ("keras", "onnx"): "keras_to_onnx",
    ("savedmodel", "onnx"): "savedmodel_to_onnx",
    ("tflite", "onnx"): "tflite_to_onnx",
    ("onnx", "torch"): "onnx_to_torch",
    ("torch", "mlprogram"): "torch_to_mlprogram",
    ("keras", "mlprogram"): "keras_to_mlprogram",
    ("savedmodel", "mlprogram"): "savedmodel_to_mlprogram",
}


def route(source_format: str, accepts: Sequence[str]) -> tuple[ModuleType, ...]:
    """The shortest chain of converters from a format to one that a backend accepts (best first); empty when it accepts the source itself.

    Raises `ConversionError` when there is none.
    """
    chains: dict[str, tuple[str, ...]] = {source_format: ()}
    for _ in HOPS:
        reached = [c for c in accepts if c in chains]
        if reached:
            return tuple(importlib.import_module(f"edgekit.converters.{name}") for name in chains[reached[0]])
        chains = {**{result: (*chains[source], name) for (source, result), name in HOPS.items() if source in chains}, **chains}
    what = f"no way from {source_format} to {' or '.join(accepts)}"
    raise ConversionError(what, "the target's backend takes none of the formats this model can become")


DETOURS = {("onnx", "tflite"): ("onnx_to_torch", "torch_to_litert")}
"""Another way for what the shortest cannot convert."""


def detour(source_format: str, accepts: Sequence[str]) -> tuple[ModuleType, ...]:
    """A longer chain that other tools convert, for a model on which the shortest fails; empty where there is none."""
    hops = next((hops for result in accepts if (hops := DETOURS.get((source_format, result)))), ())
    return tuple(importlib.import_module(f"edgekit.converters.{name}") for name in hops)
