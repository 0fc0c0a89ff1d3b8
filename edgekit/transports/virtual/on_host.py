"""Virtual devices that are a process of this machine: a simulator or reference behind the job/result contract."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from edgekit.errors import UsageError
from edgekit.transports import Facts, local


class OnHost:
    """A device whose jobs `edgekit.hostrun` executes here. `stands_for` are the facts in which it differs from this machine.

    `check` looks at a job folder before it runs, and raises what is wrong with it for this device.
    """

    def __init__(self, name: str, options: Mapping[str, Any], stands_for: Mapping[str, Any], check: Callable[[Path], None] | None = None) -> None:
        if options:
            raise UsageError(f"virtual:{name} has no option {next(iter(options))!r}", "it takes none")
        self._link = local.connect("", {})
        self._stands_for, self._check = stands_for, check

    def facts(self) -> Facts:
        """What the device stands for; it is marked as emulated."""
        return msgspec.structs.replace(self._link.facts(), emulated=True, **self._stands_for)

    def execute(self, job: Path, result: Path, timeout_s: float) -> None:
        """Run a job folder. Raises what `local:` and the device's own check raise."""
        if self._check:
            self._check(job)
        self._link.execute(job, result, timeout_s)

    def close(self) -> None:
        """Nothing is held."""


def missing_packages(packages: Mapping[str, str]) -> tuple[str, ...]:
    """The modules (module -> extra of edgekit) that cannot be found, each with the command that installs it."""
    return tuple(f"{module}: pip install 'edgekit[{extra}]'" for module, extra in packages.items() if importlib.util.find_spec(module) is None)
