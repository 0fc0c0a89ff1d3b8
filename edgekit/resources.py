"""Data that ships with edgekit: inside the package in a wheel, beside it in a checkout or an editable install."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def directory(name: str) -> Path:
    """The folder `targets`, `devices` or `apps`."""
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name
