"""Ending work in threads: a signal reaches the main thread alone, so those that wait for devices ask now and then whether to go on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

SLICE_S = 0.2
"""How long a thread waits for a device without asking."""

_asked = threading.Event()
_told = threading.local()


@contextlib.contextmanager
def asked() -> Iterator[None]:
    """While it lasts, every thread but the main one that asks is told to end."""
    _asked.set()
    try:
        yield
    finally:
        _asked.clear()


def check() -> None:
    """Raise `KeyboardInterrupt` in a thread that is to end: once, as what it does after that is cleaning up."""
    if _asked.is_set() and threading.current_thread() is not threading.main_thread() and not getattr(_told, "once", False):
        _told.once = True
        raise KeyboardInterrupt
