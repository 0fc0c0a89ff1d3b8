"""Versions and licenses of the tools that shape an artifact, as installed here."""

from __future__ import annotations

import functools
import platform
from importlib import metadata

PACKAGES = (
    "torch",
    "litert-torch",
    "litert-converter",
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "onnxslim",
    "onnxruntime-qnn",
    "tf2onnx",
    "ai-edge-litert",
    "ai-edge-quantizer",
    "coremltools",
    "amd-quark",
    "tflite-micro",
    "ethos-u-vela",
    "bakenn",
    "numpy",
)


@functools.cache
def tool_versions() -> dict[str, str]:
    """Version by package name, of those installed."""
    return {"python": platform.python_version()} | {name: version for name in PACKAGES if (version := _version(name))}


def license_of(package: str) -> str:
    """The license that an installed package declares; empty when it declares none."""
    try:
        fields = metadata.metadata(package)
    except metadata.PackageNotFoundError:
        return ""
    text = next((fields[key] for key in ("License-Expression", "License") if key in fields), "")
    return text.splitlines()[0].strip() if text.strip() else ""


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
