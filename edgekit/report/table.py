"""Plain tables for a terminal or a log: columns as wide as their text, long text folded, wide characters counted as two."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence

INDENT = "  "
GAP = "  "
NARROWEST = 12
"""Columns of the terminal that folded text keeps at least."""


def render(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), width: int = 100) -> list[str]:
    """Lines of a table; `right` are the columns aligned to the right.

    Where it is wider than `width`, its widest left-aligned column is folded.
    """
    count = len(rows[0]) if rows else 0
    widths = [max(cells(row[i]) for row in rows) for i in range(count)]
    left = [i for i in range(count) if i not in right]
    excess = len(INDENT) + sum(widths) + len(GAP) * (count - 1) - width
    if excess > 0 and left:
        widest = max(left, key=lambda i: widths[i])
        widths[widest] = max(widths[widest] - excess, min(NARROWEST, widths[widest]))
    return [line for row in rows for line in _lines(row, widths, right)]


def cells(text: str) -> int:
    """Columns of the terminal that a text takes."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def fold(text: str, width: int) -> list[str]:
    """A text as lines of at most `width` columns, broken at a space where one is in their second half."""
    lines = []
    while cells(text) > width:
        end = _fitting(text, width)
        space = text.rfind(" ", end // 2, end + 1)
        cut = space if space > 0 else end
        lines.append(text[:cut].rstrip())
        text = text[cut:].lstrip()
    return [*lines, text] if text or not lines else lines


def _lines(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> list[str]:
    folded = [fold(text, width) for text, width in zip(row, widths, strict=True)]
    rows = itertools.zip_longest(*folded, fillvalue="")
    return [(INDENT + GAP.join(_aligned(text, widths[i], i in right) for i, text in enumerate(line))).rstrip() for line in rows]


def _aligned(text: str, width: int, right: bool) -> str:
    space = " " * (width - cells(text))
    return space + text if right else text + space


def _fitting(text: str, width: int) -> int:
    """How many characters fit into `width` columns; one at least."""
    used = 0
    for index, character in enumerate(text):
        used += cells(character)
        if used > width:
            return max(index, 1)
    return len(text)
