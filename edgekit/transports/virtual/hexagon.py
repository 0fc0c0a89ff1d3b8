"""`virtual:hexagon-vNN`: Qualcomm's HTP simulator, standing for one Hexagon generation.

It computes as the chip does. It does not check the generation itself, so that is compared here, before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from edgekit.errors import UsageError
from edgekit.job import inside, read_job
from edgekit.transports.virtual.on_host import OnHost, missing_packages


def connect(name: str, options: Mapping[str, Any]) -> OnHost:
    """The simulator as the generation that `name` ends with. Raises `UsageError` for an option: it has none."""
    arch = int(name.removeprefix("hexagon-v"))
    details = {"hexagon_arch": str(arch), "simulator": "onnxruntime-qnn"}
    return OnHost(name, options, {"model": f"Hexagon v{arch} (simulator)", "details": details}, partial(_check_generation, arch))


def missing() -> tuple[str, ...]:
    """What this machine lacks for it."""
    return missing_packages({"onnxruntime": "onnx", "onnxruntime_qnn": "qnn"})


def _check_generation(arch: int, job: Path) -> None:
    """Raises `UsageError` when the artifact was built for another generation."""
    built = _built_for(job)
    if built is not None and built != arch:
        what = f"the artifact was built for Hexagon v{built}, and the device is v{arch}: its context binary would not load there"
        raise UsageError(what, f"package it for hexagon-v{arch}")


class _Build(msgspec.Struct, frozen=True):
    arch: int


def _built_for(job: Path) -> int | None:
    """The generation that the job's artifact says it was built for; None when it says nothing."""
    path = inside(job, f"{read_job(job).artifact}/build.json")
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Build).arch
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
