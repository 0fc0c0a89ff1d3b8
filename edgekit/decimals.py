"""Numbers as people, files and devices write them: the digits 0 to 9. Python's own `int` and `float` also take other scripts' digits,
underscores, blanks around, `nan` and `inf`: a slip or a trick where a number is meant.
"""

from __future__ import annotations

import math
import re


def whole(text: str) -> int:
    """A whole number of at most 18 digits. Raises `ValueError`."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def number(text: str) -> float:
    """A finite number, as `5`, `-0.25`, `1e-3`. Raises `ValueError`."""
    if not re.fullmatch(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", text) or not math.isfinite(found := float(text)):
        raise ValueError(f"{text!r} is not a number")
    return found


def is_whole(text: str) -> bool:
    """Whether text is a whole number, with no sign."""
    return re.fullmatch(r"[0-9]{1,18}", text) is not None
