"""A graph a stretch at a time: what runs, on which values, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from edgekit.quantize.grid import Affine
from edgekit.quantize.stream import Stream
from edgekit.tensors import Array

OPERATORS = [(["x"], ["a"]), (["a"], ["b"]), (["a", "b"], ["c"]), (["c"], ["y", "unused"])]
"""a = x + 1, b = a + 1, c = a + b, y = c + 1."""


def test_each_stretch_is_fed_what_it_reads_and_gives_what_is_read_later(tmp_path: Path) -> None:
    asked: list[tuple[int, int, list[str], list[str]]] = []

    def stretch(start: int, stop: int, fed: Mapping[str, Array], kept: Sequence[str]) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
        asked.append((start, stop, sorted(fed), list(kept)))

        def run(values: Mapping[str, Array]) -> dict[str, Array]:
            known = dict(values)
            for read, made in OPERATORS[start:stop]:
                known |= dict.fromkeys(made, sum(known[name] for name in read) + (len(read) == 1))
            return {name: known[name] for name in kept}

        return run

    samples = [{"x": np.full(2, value, np.float32)} for value in (0.3, 7)]
    flow = Stream(OPERATORS, ["y"], samples, {"b": Affine(1.0, 0, 0, 255)}, tmp_path, stretch)
    flow.advance(3)
    flow.advance(3)
    assert [list(value) for value in flow.values("c")] == [[np.float32(1.3) + 2] * 2, [17, 17]]  # b: 2.3 is rounded to 2
    flow.advance(4)
    assert [list(value) for value in flow.values("y")] == [[np.float32(1.3) + 3] * 2, [18, 18]]
    assert asked == [(0, 2, ["x"], ["a", "b"]), (2, 3, ["a", "b"], ["c"]), (3, 4, ["c"], ["y"])]
    flow.close()
