from __future__ import annotations

import pytest

from edgekit.quantize.sampling import spread


@pytest.mark.parametrize(("count", "parts"), [(1, 1), (2, 1), (7, 7), (64, 16), (1000, 3)])
def test_one_of_each_stretch_in_order(count, parts):
    found = spread(count, parts)
    assert found == spread(count, parts)
    assert all(part * count // parts <= index < (part + 1) * count // parts for part, index in enumerate(found))


@pytest.mark.parametrize("turn", [2, 4, 5, 8])
def test_data_that_come_in_turns_are_all_represented(turn):
    picked = {index % turn for index in spread(64, 16)}
    left = {index % turn for index in range(64) if index not in spread(64, 16)}
    assert picked == left == set(range(turn))


def test_more_parts_than_samples_are_refused():
    with pytest.raises(ValueError, match="4 of 3 samples"):
        spread(3, 4)
    with pytest.raises(ValueError, match="0 of 3"):
        spread(3, 0)
