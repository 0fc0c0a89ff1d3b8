"""How long work reports that it goes on."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""`progress(done, of, what)`: `done` of `of` steps of `what` are done; `of` 0 means that the end is unknown."""


def silent(done: int, of: int, what: str) -> None:
    """Report to nobody."""
