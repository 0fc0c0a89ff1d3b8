"""Resizes of PyTorch that LiteRT's own compute otherwise, in selections, weighted sums and products with constants. Each is exact.

LiteRT has one ratio of sizes, input to output; PyTorch takes the factor that it was given where the sizes do not divide. Nearest neighbors
are the ones above in PyTorch (`floor(i * ratio)`) and the middle ones in LiteRT; smoothed (anti-aliased) resizes LiteRT does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgekit.legalize.torch_pools import each


def nearest_moves(x: Any, output_size: Any = None, *scales: Any) -> bool:
    """Whether an axis grows by anything but a whole factor."""
    return any(count % size or ratio * count != size for size, count, ratio in _axes(x, output_size, scales))


def any_size(x: Any, output_size: Any = None, *scales: Any) -> bool:
    """Whatever the factors."""
    del x, output_size, scales
    return True


def nearest(x: Any, output_size: Any = None, *scales: Any) -> Any:
    """Rows and columns at floor(i * ratio)."""
    return _picked(x, _axes(x, output_size, scales), 0.0)


def nearest_exact(x: Any, output_size: Any = None, *scales: Any) -> Any:
    """Rows and columns at floor((i + 0.5) * ratio)."""
    return _picked(x, _axes(x, output_size, scales), 0.5)


def _picked(x: Any, axes: Sequence[tuple[int, int, float]], offset: float) -> Any:
    import numpy as np
    import torch

    for axis, (size, count, ratio) in enumerate(axes, start=x.dim() - 2):
        middles = np.arange(count, dtype=np.float32) + np.float32(offset)
        places = np.minimum(np.floor(middles * np.float32(ratio)).astype(np.int64), size - 1)
        x = x.index_select(axis, torch.from_numpy(places))
    return x


def bilinear_moves(x: Any, output_size: Any, align_corners: bool, *scales: Any) -> bool:
    """Whether the factor that was given is not the ratio of the sizes."""
    return not align_corners and any(abs(ratio * count / size - 1) > 1e-6 for size, count, ratio in _axes(x, output_size, scales))


def bilinear(x: Any, output_size: Any, align_corners: bool, *scales: Any) -> Any:
    """Neighbors at (i + 0.5) * ratio - 0.5, weighted by their distance, axis by axis."""
    import numpy as np
    import torch

    del align_corners
    for axis, (size, count, ratio) in enumerate(_axes(x, output_size, scales), start=x.dim() - 2):
        places = np.maximum((np.arange(count) + 0.5) * ratio - 0.5, 0)
        low = np.minimum(np.floor(places).astype(np.int64), size - 1)
        high = np.minimum(low + 1, size - 1)
        share = torch.from_numpy((places - low).clip(0, 1)).to(x.dtype).reshape([-1] + [1] * (x.dim() - 1 - axis))
        below, above = (x.index_select(axis, torch.from_numpy(chosen)) for chosen in (low, high))
        x = below * (1 - share) + above * share
    return x


def smoothed(kind: str) -> Callable[..., Any]:
    """The lowering of an anti-aliased resize: products with what it makes of unit rows and unit columns."""

    def lowered(x: Any, output_size: Any, align_corners: bool, *scales: Any) -> Any:
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        def weights(axis: int) -> Any:
            size, count, ratio = axes[axis]
            factor = [1 / ratio, None] if given else [None, None]
            with _disable_current_modes():  # constants, which a trace does not look into
                unit = torch.eye(size)[None, None]
                made = getattr(torch.ops.aten, kind)(unit, [count, size], align_corners, *factor)[0, 0].numpy()
            return torch.from_numpy(made.copy()).to(x.dtype)

        axes = list(_axes(x, output_size, scales))
        given = any(scale is not None for scale in scales)
        return torch.matmul(torch.matmul(weights(0), x), weights(1).T)

    return lowered


def _axes(x: Any, output_size: Any, scales: Sequence[Any]) -> list[tuple[int, int, float]]:
    """Input size, output size and ratio of rows and of columns; factors come as a list or one by one."""
    factors = scales[0] if scales and isinstance(scales[0], (list, tuple)) else [*scales, None, None][:2]
    factors = [None, None] if factors is None or None in factors else factors
    found = []
    for axis, factor in enumerate(factors):
        size = int(x.shape[x.dim() - 2 + axis])
        count = int(size * factor) if output_size is None else int(each(output_size, 2)[axis])
        found.append((size, count, 1 / factor if factor else size / count))
    return found
