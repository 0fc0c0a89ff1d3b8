"""`virtual:coreml`: an Apple device whose ML Programs the interpreter of `edgekit.virtual.coreml` runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.transports.virtual.on_host import OnHost, missing_packages

_DEVICE = {"os": "ios", "abi": "arm64", "platform": "ios-arm64", "model": "virtual Core ML device"}


def connect(name: str, options: Mapping[str, Any]) -> OnHost:
    """An iOS device. Raises `UsageError` for an option: it has none."""
    return OnHost(name, options, _DEVICE)


def missing() -> tuple[str, ...]:
    """What this machine lacks for it."""
    return missing_packages({"torch": "coreml"})
