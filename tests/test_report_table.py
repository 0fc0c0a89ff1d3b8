"""Tables: alignment, folding, wide characters."""

from __future__ import annotations

import pytest

from edgekit.report import table


def test_columns_are_as_wide_as_their_text_and_aligned() -> None:
    rows = [("name", "bytes"), ("a", "1,234"), ("longer", "5")]
    assert table.render(rows, right=[1]) == ["  name    bytes", "  a       1,234", "  longer      5"]


def test_wide_and_combining_characters_keep_the_columns() -> None:
    rows = [("日本", "x"), ("e\u0301a", "y"), ("abcd", "z")]
    assert [table.cells(line) for line in table.render(rows)] == [9, 9, 9]


@pytest.mark.parametrize("width", [24, 40, 60])
def test_the_widest_left_column_is_folded(width: int) -> None:
    text = "a sentence that is much longer than the terminal is wide, in words"
    lines = table.render([("key", text), ("n", "1")], width=width)
    assert max(map(len, lines)) <= width
    assert " ".join(line[7:].strip() for line in lines).replace("  ", " ").endswith("1")
    assert "".join(lines).replace(" ", "") == ("key" + text + "n1").replace(" ", "")


def test_text_without_spaces_is_cut_where_the_line_ends() -> None:
    assert table.fold("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]
    assert table.fold("日" * 3, 1) == ["日", "日", "日"]


def test_no_rows_are_no_lines() -> None:
    assert table.render([]) == []
