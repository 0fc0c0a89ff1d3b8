from __future__ import annotations

import numpy as np
import pytest

from edgekit.quantize import shelf
from edgekit.quantize.gathering import COLUMNS, Gathering, columns_a_sample, judging
from edgekit.quantize.shelf import Shelf
from edgekit.quantize.windows import Window, by_group, patches, pick, rows


def floats(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_halves_hold_the_moments_of_their_own_samples(monkeypatch):
    monkeypatch.setattr("edgekit.quantize.gathering.BLOCK_BYTES", 200)  # settle in the middle of the stream
    seen, wanted = floats(0, 9, 2, 5, 3), floats(1, 9, 2, 5, 3)
    gathering, judges = Gathering(9, second=True), sorted(judging(9))
    for number in range(9):
        gathering.add(number, seen[number], wanted[number])
    assert len(judges) == 2
    for half, numbers in zip(gathering.halves(), ([i for i in range(9) if i not in judges], judges), strict=True):
        x, w = (np.concatenate(list(array[numbers]), axis=1).astype(np.float64) for array in (seen, wanted))
        assert half.count == 5 * len(numbers)
        np.testing.assert_allclose(half.mean, x.mean(axis=1), atol=1e-6)
        np.testing.assert_allclose(half.second, np.einsum("gsk,gsl->gkl", x, x) / half.count, atol=1e-5)
        np.testing.assert_allclose(half.cross, np.einsum("gsk,gsl->gkl", w, x) / half.count, atol=1e-5)
        by_hand = [np.cov(w[g].T, x[g].T, bias=True)[:3, 3:] - np.cov(x[g].T, bias=True) for g in range(2)]
        np.testing.assert_allclose(half.drift(w.mean(axis=1)), by_hand, atol=1e-5)


def test_too_few_samples_teach_and_judge():
    gathering = Gathering(3, second=False)
    for number in range(3):
        gathering.add(number, floats(number, 1, 4, 2))
    first, second = gathering.halves()
    assert first is second and first.count == 12 and first.second.size == 0


def test_columns_are_bounded_by_the_layer_s_width():
    assert columns_a_sample(9, 10) == COLUMNS[0] / 10
    assert columns_a_sample(500, 10) == 400
    assert columns_a_sample(10_000, 7) == -(-COLUMNS[1] // 7)


def test_a_shelf_keeps_what_does_not_fit_in_files_and_leaves_none(tmp_path, monkeypatch):
    monkeypatch.setattr(shelf, "MEMORY_BYTES", 100)
    one, two = Shelf[str](tmp_path), Shelf[str](tmp_path)
    arrays = {(sample, key): floats(sample, 10) for sample in range(3) for key in ("a", "b/c")}
    for (sample, key), array in arrays.items():
        one.put(sample, key, array)
        two.put(sample, key, array + 1)
    assert len(list(tmp_path.iterdir())) == 2 * 4  # two arrays of 40 bytes fit in 100
    for (sample, key), array in arrays.items():
        np.testing.assert_array_equal(one.get(sample, key), array)
        np.testing.assert_array_equal(two.get(sample, key), array + 1)
    one.put(0, "a", floats(7, 2))
    np.testing.assert_array_equal(one.get(0, "a"), floats(7, 2))
    one.clear(), two.clear(), one.drop(0, "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("stride", "dilation", "before", "out"), [((1, 1), (1, 1), (1, 1), (6, 5)), ((2, 1), (1, 2), (0, 2), (3, 5))])
def test_patches_are_those_of_a_loop_over_positions(stride, dilation, before, out):
    values, kernel = floats(2, 2, 6, 5, 4), (3, 3)
    window = Window(kernel, stride, dilation, before, out)
    found = by_group(patches(window, values, 10_000, 0), 2, channels_first=True)
    for number, (image, row, column) in enumerate(np.ndindex(2, *out)):
        wanted = np.zeros((4, 3, 3), np.float32)
        for i, j in np.ndindex(*kernel):
            y, x = row * stride[0] - before[0] + i * dilation[0], column * stride[1] - before[1] + j * dilation[1]
            if 0 <= y < 6 and 0 <= x < 5:
                wanted[:, i, j] = values[image, y, x]
        np.testing.assert_array_equal(found[:, number], wanted.reshape(2, -1))


def test_the_same_seed_picks_the_same_positions():
    values = floats(3, 40, 3)
    np.testing.assert_array_equal(rows(values, 3, 7, 5), rows(values, 3, 7, 5))
    assert len(set(pick(40, 7, 5))) == 7 and list(pick(4, 7, 5)) == [0, 1, 2, 3]
