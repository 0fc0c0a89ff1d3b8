"""Which of many samples: evenly over their order, but without a fixed stride."""

from __future__ import annotations

GOLDEN = 0.6180339887498949
"""Its multiples, modulo one, fill the unit interval as evenly as a sequence can (Kronecker sequence of the golden ratio)."""


def spread(count: int, parts: int) -> tuple[int, ...]:
    """`parts` indices below `count`, ascending: one of each of `parts` equal stretches, at a place in it that moves by the golden ratio.

    Data often come in turns (one image of each class, then the next), where a stride that divides the turn sees the same classes over
    and over. Raises `ValueError` unless 1 <= parts <= count.
    """
    if not 1 <= parts <= count:
        raise ValueError(f"{parts} of {count} samples")
    starts = [part * count // parts for part in range(parts + 1)]
    return tuple(starts[part] + int((starts[part + 1] - starts[part]) * (part * GOLDEN % 1)) for part in range(parts))
