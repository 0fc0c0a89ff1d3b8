"""Named tensors: what a model takes and gives, and how stored integers map to real values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Arrays = Mapping[str, NDArray[Any]]
else:  # numpy is imported where it is used: `edgekit --help` must not pay for it
    Array = Any
    Arrays = Mapping[str, Any]

DTYPES = ("float32", "float16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")
_LARGEST_SCALE = 1e30
"""Real values of any integer type stay finite in float32 below it."""


class Pixels(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the pixels of an image input become real values: real = pixel * scale + offset, a pair for each channel of the real tensor.

    The real tensor is laid out as `layout` (`NCHW` or `NHWC`); with `reversed` its channels are blue, green, red. The pixels themselves are
    always uint8 [1, height, width, channels], red, green, blue (or gray), as pictures have them.
    """

    layout: str
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    reversed: bool = False


class TensorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input or output.

    `shape` holds static sizes. `scale` and `zero_point` describe a quantized tensor: real = scale * (stored - zero_point), per tensor.
    `layout` is `NCHW`, `NHWC` or empty where the question does not arise. `pixels` says that the tensor is an image, and what its values mean.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: float | None = None
    zero_point: int = 0
    layout: str = ""
    pixels: Pixels | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def real(self) -> TensorSpec:
        """The tensor in real values: float32 where it is quantized or an image, as it is otherwise."""
        if self.pixels is not None:
            batch, height, width, channels = self.shape
            shape = (batch, channels, height, width) if self.pixels.layout == "NCHW" else self.shape
            return TensorSpec(self.name, shape, "float32", layout=self.pixels.layout)
        return self if self.scale is None else TensorSpec(self.name, self.shape, "float32", layout=self.layout)


def contradiction(spec: TensorSpec) -> str:
    """What a spec that was read from outside says that cannot be, in words; empty where all can."""
    if spec.dtype not in DTYPES or min(spec.shape, default=0) < 0:
        return f"{spec.name!r} is {spec.dtype}{list(spec.shape)}"
    if spec.scale is not None and not (_is_integer(spec.dtype) and 0 < spec.scale < _LARGEST_SCALE):
        return f"{spec.name!r} is {spec.dtype} with the scale {spec.scale:g}"
    if spec.pixels is not None and not _fits_pixels(spec, spec.pixels):
        return f"{spec.name!r} is {spec.dtype}{list(spec.shape)}, which its pixels do not fit"
    return ""


def _is_integer(dtype: str) -> bool:
    return "int" in dtype


def _fits_pixels(spec: TensorSpec, pixels: Pixels) -> bool:
    if spec.dtype != "uint8" or len(spec.shape) != 4 or pixels.layout not in ("NCHW", "NHWC"):
        return False
    return len(pixels.scale) == len(pixels.offset) == spec.shape[3] and all(map(math.isfinite, (*pixels.scale, *pixels.offset))) and all(pixels.scale)


class Signature(msgspec.Struct, frozen=True):
    """Inputs and outputs in the source model's order, under the source model's names."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def dequantize(stored: Array, spec: TensorSpec) -> Array:
    """Real values (float32; float64 stays) of a stored tensor, by its own scale and zero point."""
    import numpy as np

    if spec.pixels is not None:
        return _of_pixels(stored, spec.pixels)
    if spec.scale is None:
        return stored if stored.dtype == np.float64 else stored.astype(np.float32)
    return ((stored.astype(np.float64) - spec.zero_point) * spec.scale).astype(np.float32)


def quantize(real: Array, spec: TensorSpec) -> Array:
    """Stored values of a real tensor: round half to even, saturate to the dtype; a plain cast where `spec` has no scale."""
    import numpy as np

    dtype = np.dtype(spec.dtype)
    if spec.pixels is not None:
        return _to_pixels(real, spec.pixels)
    if spec.scale is None:
        return real.astype(dtype)
    limits = np.iinfo(dtype)
    steps = np.rint(real.astype(np.float64) / spec.scale) + spec.zero_point
    stored: Array = np.clip(steps, limits.min, limits.max).astype(dtype)
    return stored


def _of_pixels(stored: Array, pixels: Pixels) -> Array:
    import numpy as np

    ordered = stored[..., ::-1] if pixels.reversed else stored
    real = (ordered * np.array(pixels.scale) + np.array(pixels.offset)).astype(np.float32)
    return np.ascontiguousarray(real.transpose(0, 3, 1, 2) if pixels.layout == "NCHW" else real)


def _to_pixels(real: Array, pixels: Pixels) -> Array:
    import numpy as np

    last = real.transpose(0, 2, 3, 1) if pixels.layout == "NCHW" else real
    found = (last.astype(np.float64) - np.array(pixels.offset)) / np.array(pixels.scale)
    ordered = found[..., ::-1] if pixels.reversed else found
    return np.ascontiguousarray(np.clip(np.rint(ordered), 0, 255).astype(np.uint8))


def raw_bytes(array: Array) -> bytes:
    """A tensor as raw little-endian, C-ordered bytes."""
    import numpy as np

    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def write_raw(path: Path, array: Array) -> None:
    """Write a tensor as raw little-endian, C-ordered bytes."""
    path.write_bytes(raw_bytes(array))


def read_raw(path: Path, spec: TensorSpec) -> Array:
    """Read a raw little-endian tensor of `spec`'s shape and dtype. Raises `ValueError` when the byte count does not fit."""
    import numpy as np

    dtype = np.dtype(spec.dtype).newbyteorder("<")
    wanted, found = spec.elements * dtype.itemsize, path.stat().st_size  # looked at before it is read: a device may have written anything
    if found != wanted:
        raise ValueError(f"{path.name}: {found} bytes, but {spec.name} {spec.dtype}{list(spec.shape)} takes {wanted}")
    return np.frombuffer(path.read_bytes(), dtype).reshape(spec.shape).astype(spec.dtype)
