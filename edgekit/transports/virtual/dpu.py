"""`virtual:dpu`: a board with a DPU, whose jobs run by the integer reference (`edgekit.virtual.dpu`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.transports.virtual.on_host import OnHost, missing_packages

_BOARD = {"os": "linux", "abi": "aarch64", "platform": "linux-aarch64", "model": "virtual DPU"}


def connect(name: str, options: Mapping[str, Any]) -> OnHost:
    """A 64-bit Arm Linux board. Raises `UsageError` for an option: it has none."""
    return OnHost(name, options, _BOARD)


def missing() -> tuple[str, ...]:
    """What this machine lacks for it."""
    return missing_packages({"onnx": "onnx", "onnxruntime": "onnx"})
