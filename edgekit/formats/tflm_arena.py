"""The smallest arena in which TFLM's interpreter prepares a model, found in a process of its own.

TFLM's kernels write into what its allocator gives without looking: an arena that is a little too small ends the process.

python -m edgekit.formats.tflm_arena MODEL: reads sizes in bytes from standard input, and answers each with 1 where it is enough, or 0.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from edgekit.errors import ConversionError

STEP_BYTES = 64
_MOST_TIMES = 64
_TIMEOUT_S = 60


def smallest(path: Path, least_bytes: int) -> int:
    """The smallest size in steps of `STEP_BYTES`, from `least_bytes` on. Raises `ConversionError` where 64 times as much is too little."""
    with _Probe(path) as probe:
        low = high = most = -(-least_bytes // STEP_BYTES)
        while not probe.fits(high):
            low, high = high + 1, 2 * high
            if high > _MOST_TIMES * most:
                raise ConversionError(f"{path.name}: TFLM prepares it in no arena of up to {high * STEP_BYTES:,} bytes", "report the model")
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if probe.fits(middle) else (middle + 1, high)
    return high * STEP_BYTES


class _Probe:
    """The process that tries sizes; started again when one ended it."""

    def __init__(self, path: Path) -> None:
        self._command = [sys.executable, "-m", "edgekit.formats.tflm_arena", str(path)]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Probe:
        return self

    def fits(self, steps: int) -> bool:
        """Whether so many steps are enough."""
        if self._process is None:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        said, talk = self._process.stdout, self._process.stdin
        assert said is not None and talk is not None
        talk.write(f"{steps * STEP_BYTES}\n")
        talk.flush()
        answer = said.readline().strip()
        if not answer:
            self._end()
        return answer == "1"

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.communicate(timeout=_TIMEOUT_S)


def main() -> None:
    """Answer until there is nothing more to read."""
    from tflite_micro.python.tflite_micro import runtime

    for line in sys.stdin:
        try:
            runtime.Interpreter.from_file(sys.argv[1], arena_size=int(line))
            enough = "1"
        except (RuntimeError, ValueError):
            enough = "0"
        print(enough, flush=True)


if __name__ == "__main__":
    main()
