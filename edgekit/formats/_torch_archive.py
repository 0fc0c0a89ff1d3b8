"""What a file of PyTorch's holds, found without running anything in it."""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path

_PLAIN = ("torch", "collections", "numpy", "_codecs", "builtins", "argparse")
"""Modules that weights alone come from; anything else is a class of somebody's own."""


def kind(path: Path) -> str:
    """`program`, `script`, or what else the file is, in words."""
    if not zipfile.is_zipfile(path):
        return "not a PyTorch archive (a truncated file, or a pickle of an old PyTorch)"
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if any("/constants/opaque_obj" in name for name in names):
            return "an exported program with pickled Python objects"
        if any(name.endswith(("models/model.json", "serialized_exported_program.json")) for name in names):
            return "program"
        if any(name.endswith("/constants.pkl") for name in names):
            return "script"
        pickled = next((name for name in names if name.endswith("/data.pkl")), None)
        return _pickled(archive, pickled) if pickled else "a zip file that holds no PyTorch model"


def _pickled(archive: zipfile.ZipFile, name: str) -> str:
    try:
        classes = _classes(archive.read(name))
    except (ValueError, IndexError, EOFError, OSError, zipfile.BadZipFile, RuntimeError):
        return "a damaged pickle"
    own = [c for c in classes if c.partition(".")[0] not in _PLAIN or (c.startswith("torch.nn.") and not c.startswith("torch.nn.parameter"))]
    return f"a pickled module ({own[0]})" if own else "weights alone, without the model that computes with them"


def _classes(data: bytes) -> list[str]:
    """`module.name` of what a pickle would import, in order."""
    found, texts = [], list[str]()
    for operation, argument, _ in pickletools.genops(data):
        if operation.name == "GLOBAL":
            found.append(str(argument).replace(" ", "."))
        elif operation.name == "STACK_GLOBAL":
            found.append(".".join(texts[-2:]))
        elif isinstance(argument, str):
            texts.append(argument)
    return found
