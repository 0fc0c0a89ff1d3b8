"""Find backends and transports by name: built-ins and third parties' entry points take the same path."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any

from edgekit.errors import PluginError, UsageError, close_match

_HINT = "install it again, or uninstall it: edgekit works without"

BUILT_IN = {
    "edgekit.backends": {"vitis": "edgekit.backends.vitis", "litert": "edgekit.backends.litert", "qnn": "edgekit.backends.qnn"},
    "edgekit.transports": {
        "adb": "edgekit.transports.adb",
        "local": "edgekit.transports.local",
        "ssh": "edgekit.transports.ssh",
        "virtual": "edgekit.transports.virtual",
    },
}


def names(group: str) -> list[str]:
    """Names known in a group, sorted."""
    return sorted({*BUILT_IN[group], *(entry.name for entry in metadata.entry_points(group=group))})


def load(group: str, name: str) -> Any:
    """The module or object behind a name. Raises `UsageError` for an unknown name, `PluginError` for one that would not load."""
    built_in = BUILT_IN[group].get(name)
    if built_in:
        return importlib.import_module(built_in)
    for entry in metadata.entry_points(group=group):
        if entry.name == name:
            try:
                return entry.load()
            except Exception as error:  # foreign code: whatever it raises is its own failure
                raise PluginError(f"the plug-in {name} ({entry.value}) would not load: {error}", _HINT) from error
    raise UsageError(f"no {group.rpartition('.')[2].rstrip('s')} named {name!r}", close_match(name, names(group)))
