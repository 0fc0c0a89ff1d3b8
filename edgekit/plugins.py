"""Find code by name: backends and transports, built-in or a third party's, take the same path; a user's own functions are imported."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from edgekit.errors import PluginError, UsageError, close_match

BUILT_IN = {
    "edgekit.backends": {
        "coreml": "edgekit.backends.coreml",
        "litert": "edgekit.backends.litert",
        "litert_micro": "edgekit.backends.litert_micro",
        "micro_c": "edgekit.backends.micro_c",
        "onnxruntime": "edgekit.backends.onnxruntime",
        "qnn": "edgekit.backends.qnn",
        "vitis": "edgekit.backends.vitis",
    },
    "edgekit.transports": {
        "adb": "edgekit.transports.adb",
        "ios": "edgekit.transports.ios",
        "local": "edgekit.transports.local",
        "serial": "edgekit.transports.serial",
        "ssh": "edgekit.transports.ssh",
        "virtual": "edgekit.transports.virtual",
    },
}

ASKED_FOR = {
    "edgekit.backends": ("accepts", "precisions", "own_precision", "prepare", "emulate", "graph", "trim"),
    "edgekit.transports": ("connect",),
}
"""What the code behind a name of a group must have."""


def names(group: str) -> list[str]:
    """Names known in a group, sorted."""
    return sorted({*BUILT_IN[group], *(entry.name for entry in metadata.entry_points(group=group))})


def is_built_in(group: str, name: str) -> bool:
    """Whether edgekit itself has the name: nothing that a third party installs takes its place."""
    return name in BUILT_IN[group]


def load(group: str, name: str) -> Any:
    """The module or object behind a name. Raises `UsageError` for an unknown name, `PluginError` for one that would not load."""
    built_in = BUILT_IN[group].get(name)
    if built_in:
        return importlib.import_module(built_in)
    for entry in metadata.entry_points(group=group):
        if entry.name == name:
            with _foreign(entry):
                return _complete(group, entry.load())
    raise UsageError(f"no {group.rpartition('.')[2].rstrip('s')} named {name!r}", close_match(name, names(group)))


def folders(group: str) -> list[Path]:
    """Folders that third parties add through entry points of `group`; each entry point is a function that returns a folder.

    Raises `PluginError` when one will not load.
    """
    found = []
    for entry in metadata.entry_points(group=group):
        with _foreign(entry):
            folder = Path(entry.load()())
            if not folder.is_dir():
                raise NotADirectoryError(f"{folder} is no folder")
            found.append(folder)
    return found


def _complete(group: str, found: Any) -> Any:
    for name in ASKED_FOR.get(group, ()):
        if not hasattr(found, name):
            raise AttributeError(f"it has no {name}")
    return found


@contextlib.contextmanager
def _foreign(entry: metadata.EntryPoint) -> Iterator[None]:
    """The seam to other people's code: whatever it raises is its own failure."""
    try:
        yield
    except (Exception, SystemExit) as error:
        hint = "install it again, or uninstall it: edgekit works without"
        said = str(error) if isinstance(error, ImportError | AttributeError | OSError) else f"{type(error).__name__}: {error}"
        raise PluginError(f"the plug-in {entry.name} ({entry.value}) would not load: {said}", hint) from error


def function(reference: str) -> Callable[[], Any]:
    """The user's function that `package.module:function` names; the working directory is searched as well, as `python -m` does.

    Raises `UsageError` when nothing of that name exists. What the module prints goes to stderr.
    """
    module_name, _, function_name = reference.partition(":")
    if not module_name or not function_name.isidentifier():
        raise UsageError(f"{reference}: not of the form package.module:function", "for instance my_package.models:classifier")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = importlib.import_module(module_name)
    except ImportError as error:
        hint = f"run from the folder that holds {module_name.partition('.')[0]}"
        raise UsageError(f"{reference}: cannot import {module_name}: {error}", hint) from error
    except (Exception, SystemExit) as error:  # the user's own code may raise anything
        raise UsageError(f"{reference}: importing {module_name} failed: {type(error).__name__}: {error}", "import it alone to see where") from error
    named: Callable[[], Any] | None = getattr(found, function_name, None)
    if not callable(named):
        public = [name for name in vars(found) if not name.startswith("_")]
        raise UsageError(f"{reference}: {module_name} has no function {function_name}", close_match(function_name, public))
    return named
