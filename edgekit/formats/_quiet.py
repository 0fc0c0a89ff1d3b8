"""Keep compilers from talking: what they print, in Python and below it, is captured for the error message."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def quiet() -> Iterator[Callable[[], str]]:
    """Send stdout and stderr of this process to a temporary file; the value is a function that reads what was said so far."""
    sys.stdout.flush()
    sys.stderr.flush()
    level = logging.root.manager.disable
    with tempfile.TemporaryFile() as sink, contextlib.ExitStack() as undo:
        for descriptor in (1, 2):
            kept = os.dup(descriptor)
            undo.callback(os.close, kept)
            undo.callback(os.dup2, kept, descriptor)
            os.dup2(sink.fileno(), descriptor)
        for redirect in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            undo.enter_context(redirect(undo.enter_context(os.fdopen(os.dup(sink.fileno()), "w", buffering=1))))
        undo.callback(logging.disable, level)
        logging.disable(logging.CRITICAL)
        undo.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield lambda: _said(sink.fileno())


def _said(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, min(size, 1 << 20), max(0, size - (1 << 20))).decode(errors="replace")
