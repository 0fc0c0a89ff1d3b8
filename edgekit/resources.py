"""Data that ships with edgekit: inside the package in a wheel, beside it in a checkout or an editable install."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from edgekit.errors import PluginError

_HINT = "install it again, or uninstall it: edgekit works without"
_PACKAGE = Path(__file__).resolve().parent


def directory(name: str) -> Path:
    """The folder `targets`, `devices` or `apps`."""
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def plugged_in(group: str) -> list[Path]:
    """Folders that third parties add through entry points of `group`; each entry point is a function that returns a folder.

    Raises `PluginError` when one will not load.
    """
    folders = []
    for entry in metadata.entry_points(group=group):
        try:
            folders.append(Path(entry.load()()))
        except Exception as error:  # foreign code: whatever it raises is its own failure
            raise PluginError(f"the plug-in {entry.name} ({entry.value}) would not load: {error}", _HINT) from error
    return folders
