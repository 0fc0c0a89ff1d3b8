"""`virtual:coreml`: an Apple device whose ML Programs the interpreter of `edgekit.virtual.coreml` runs, on a Mac as well."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from edgekit import job as contract
from edgekit.transports.virtual.on_host import OnHost, missing_packages

_DEVICE = {"os": "ios", "abi": "arm64", "platform": "ios-arm64", "model": "virtual Core ML device"}


def connect(name: str, options: Mapping[str, Any]) -> VirtualCoreml:
    """An iOS device. Raises `UsageError` for an option: it has none."""
    return VirtualCoreml(name, options, _DEVICE)


def missing() -> tuple[str, ...]:
    """What this machine lacks for it."""
    return missing_packages({"torch": "coreml"})


class VirtualCoreml(OnHost):
    """Asks for the interpreter: a Mac would run the package itself."""

    def execute(self, job: Path, result: Path, timeout_s: float) -> None:
        """Run a job folder. Raises what `local:` raises."""
        asked = contract.read_job(job)
        with tempfile.TemporaryDirectory(prefix="edgekit-coreml-") as scratch:
            staged = Path(scratch, "job")
            shutil.copytree(job, staged)
            options = {**asked.options, "engine": "interpreter"} if asked.runtime == "coreml" else asked.options
            contract.write(staged, msgspec.structs.replace(asked, options=options))
            super().execute(staged, result, timeout_s)
