"""Running a graph a stretch at a time over all samples: each stretch sees what those before it, as they are now, have made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from edgekit.quantize.grid import Affine
from edgekit.quantize.shelf import Shelf
from edgekit.tensors import Array

Key = TypeVar("Key", bound=str | int)
Run = Callable[[Mapping[Key, Array]], Mapping[Key, Array]]
Stretch = Callable[[int, int, Mapping[Key, Array], Sequence[Key]], Run[Key]]
"""(first operator, the one behind the last, what one sample feeds, what is wanted) -> what runs the operators between on one sample."""


class Stream(Generic[Key]):
    """All samples at one place of the graph: behind the operators run so far, with the values that later ones read.

    `operators` are what each reads and makes, in order; `outputs` are kept to the end. A sample holds the graph's inputs. Values that `grids`
    name are rounded to them as soon as they are computed, as integer kernels leave them. `stretch` is asked anew for each stretch.
    """

    def __init__(
        self,
        operators: Sequence[tuple[Iterable[Key], Iterable[Key]]],
        outputs: Iterable[Key],
        samples: Iterable[Mapping[Key, Array]],
        grids: Mapping[Key, Affine],
        folder: Path,
        stretch: Stretch[Key],
    ) -> None:
        self._operators = [(frozenset(read), frozenset(made)) for read, made in operators]
        last = {key: place for place, (read, _) in enumerate(self._operators) for key in read}
        self._last_use = last | dict.fromkeys(outputs, len(self._operators))
        self._grids, self._stretch, self._shelf = grids, stretch, Shelf[Key](folder)
        self._place, self._count, self._live = 0, 0, set[Key]()
        for number, sample in enumerate(samples):
            self._count, self._live = number + 1, set(sample)
            for key, array in sample.items():
                self._put(number, key, array)

    def advance(self, place: int) -> None:
        """Run the operators up to `place` (exclusive) with their constants as they are now, stopping behind each whose output is rounded."""
        rounded = [n + 1 for n in range(self._place, place - 1) if not self._grids.keys().isdisjoint(self._operators[n][1])]
        for stop in [*rounded, place]:
            self._run(stop)

    def values(self, key: Key) -> Iterator[Array]:
        """A live value, sample by sample."""
        for number in range(self._count):
            yield self._shelf.get(number, key)

    def close(self) -> None:
        """Forget everything, files included."""
        self._shelf.clear()

    def _run(self, place: int) -> None:
        operators = self._operators[self._place : place]
        read = sorted({key for taken, _ in operators for key in taken} & self._live, key=_order)
        kept = sorted({key for _, made in operators for key in made if self._last_use.get(key, -1) >= place}, key=_order)
        run: Run[Key] | None = None
        for number in range(self._count if kept else 0):
            fed = {key: self._shelf.get(number, key) for key in read}
            run = run or self._stretch(self._place, place, fed, kept)
            for key, array in run(fed).items():
                self._put(number, key, array)
        done = {key for key in self._live if self._last_use.get(key, -1) < place}
        for number in range(self._count):
            for key in done:
                self._shelf.drop(number, key)
        self._live, self._place = (self._live - done) | set(kept), place

    def _put(self, number: int, key: Key, array: Array) -> None:
        grid = self._grids.get(key)
        self._shelf.put(number, key, array if grid is None else grid.round(array).astype(array.dtype))


def _order(key: str | int) -> tuple[int, str]:
    return (key, "") if isinstance(key, int) else (0, key)
