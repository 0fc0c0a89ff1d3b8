"""Text is UTF-8 whatever the locale: names of files go to runtimes that know no other, and tables are drawn with signs that ASCII lacks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from edgekit.errors import UsageError

_MODE = "PYTHONUTF8"


def speak_utf8() -> None:
    """Begin again in Python's UTF-8 mode where the locale says otherwise; what edgekit starts inherits it."""
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get(_MODE) == "1" or not sys.executable:
        return
    os.environ[_MODE] = "1"
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606  (no shell: the very command that was typed)


def check(arguments: Sequence[str]) -> None:
    """Refuse a name that is no UTF-8: no bundle or report could hold it. Raises `UsageError`."""
    for text in arguments:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise UsageError(f"{os.fsencode(text)!r} is not UTF-8", "rename the file or folder")
