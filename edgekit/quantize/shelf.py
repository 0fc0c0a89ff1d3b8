"""Arrays of many samples kept in memory up to a bound, and beyond it in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Generic, TypeVar

from edgekit.tensors import Array

MEMORY_BYTES = 128_000_000
"""Arrays are kept in memory up to this; beyond it they lie in files."""

Key = TypeVar("Key")


class Shelf(Generic[Key]):
    """Arrays by sample number and key. Files lie in `folder`, of which another shelf may use the same."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._bytes, self._files = folder, 0, 0
        self._held: dict[tuple[int, Key], Any] = {}

    def put(self, sample: int, key: Key, array: Array) -> None:
        """Keep an array; one that is there under the same names is replaced."""
        import numpy as np

        self.drop(sample, key)
        if self._bytes + array.nbytes <= MEMORY_BYTES:
            self._bytes += array.nbytes
            self._held[sample, key] = array
            return
        self._files += 1
        path = self._folder / f"activation-{id(self):x}-{self._files}.npy"
        np.save(path, array)
        self._held[sample, key] = path

    def get(self, sample: int, key: Key) -> Array:
        """An array that is there."""
        import numpy as np

        held = self._held[sample, key]
        found: Array = np.load(held) if isinstance(held, Path) else held
        return found

    def drop(self, sample: int, key: Key) -> None:
        """Forget an array, its file included; one that is not there is no error."""
        held = self._held.pop((sample, key), None)
        if isinstance(held, Path):
            held.unlink()
        elif held is not None:
            self._bytes -= held.nbytes

    def clear(self) -> None:
        """Forget everything, files included."""
        for sample, key in list(self._held):
            self.drop(sample, key)
