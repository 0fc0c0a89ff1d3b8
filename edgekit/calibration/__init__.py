"""Samples to calibrate and judge a model on: the user's, read in a fixed order and checked before use, or random ones.

The same data always gives the same samples, to the byte.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from edgekit.calibration import checks, fitting, sources
from edgekit.errors import UsageError
from edgekit.preprocess import Preprocess
from edgekit.quantize.sampling import spread
from edgekit.tensors import Array, Signature, TensorSpec, dequantize

if TYPE_CHECKING:
    from numpy.random import RandomState

MOST_SAMPLES = 256
BYTE_TYPES = ("int8", "uint8")


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Samples as input name -> array of the input's shape, with the file each came from, and what was odd about them.

    Arrays have the input's dtype, but float32 real values where the input is quantized (has a scale): `tensors.quantize` makes stored ones.
    """

    samples: tuple[dict[str, Array], ...]
    names: tuple[str, ...]
    notices: tuple[str, ...] = ()


def load(reference: str, signature: Signature, preprocess: Preprocess | None = None, limit: int = MOST_SAMPLES) -> Calibration:
    """Read a folder of images, a folder of `.npy`/`.npz`, one `.npz` or `.npy`, or what `package.module:function` yields.

    Keys of a `.npz` and of a yielded dict are input names; a model with one input takes any key. A leading axis more than the input has holds
    several samples. Of more than `limit` samples, evenly spaced ones are taken, the first ones of a function. `preprocess` is applied to images
    alone. Raises `UsageError`, naming the file, for data that cannot be read, does not fit, is not finite, or is in other units than stated.
    """
    if limit < 1:
        raise UsageError(f"{limit} calibration samples", "at least one is needed")
    found = sources.open(reference, signature, preprocess, limit)
    samples: list[dict[str, Array]] = []
    names: list[str] = []
    for name, arrays in found.samples:
        samples.append(fitting.fit(name, arrays, signature, samples[0] if samples else None))
        names.append(name)
        if len(samples) == limit:
            break
    if not samples:
        raise UsageError(f"{reference}: no calibration samples in it", sources.TAKES)
    notices = (*found.notices, *checks.judge(samples, names, signature, found.preprocess))
    return Calibration(tuple(samples), tuple(names), tuple(dict.fromkeys(notices)))


def split(calibration: Calibration, holdout: int) -> tuple[Calibration, Calibration]:
    """Two parts: what to calibrate on, and `holdout` samples to judge on, one of each stretch of the data.

    A fixed stride would pick the same kinds over and over from data that come in turns (one image of each class, then the next). At least
    one sample stays on each side; a single sample is on both, with a notice. The same counts always give the same split.
    """
    count = len(calibration.samples)
    if count < 2:
        notice = "the only sample both calibrates and judges: the measured fidelity is too good"
        both = dataclasses.replace(calibration, notices=(*calibration.notices, notice))
        return both, both
    held = set(spread(count, max(1, min(holdout, count - 1))))
    return _part(calibration, [i for i in range(count) if i not in held]), _part(calibration, sorted(held))


def random_samples(signature: Signature, count: int, seed: int) -> tuple[dict[str, Array], ...]:
    """Random inputs: standard normal floats, integers over the whole range of 8-bit inputs, 0 or 1 for wider ones.

    Wider integers are indices, lengths or masks, where other values may be out of range for the model. Quantized inputs get real values over the
    whole range that they can store, images any pixels. Raises `UsageError` for an input without static shape.
    """
    import numpy as np

    for spec in signature.inputs:
        if any(size < 0 for size in spec.shape):
            raise UsageError(f"{spec.name}: shape {list(spec.shape)} is not static", f"give --input {spec.name}=SHAPE")
    rng = np.random.RandomState(seed)  # its streams are frozen: other versions of numpy give the same numbers
    return tuple({spec.name: _random(spec, rng) for spec in signature.inputs} for _ in range(count))


def _part(calibration: Calibration, indices: list[int]) -> Calibration:
    return Calibration(tuple(calibration.samples[i] for i in indices), tuple(calibration.names[i] for i in indices), calibration.notices)


def _random(spec: TensorSpec, rng: RandomState) -> Array:
    import numpy as np

    dtype = np.dtype(spec.dtype)
    if spec.pixels is not None:
        return dequantize(rng.randint(0, 256, spec.shape).astype(np.uint8), spec)
    if dtype.kind == "f":
        return np.asarray(rng.standard_normal(spec.shape), dtype)
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if spec.scale is not None or spec.dtype in BYTE_TYPES else (0, 1)
    stored = np.asarray(rng.randint(low, high + 1, spec.shape, dtype=np.int64))
    return np.asarray((stored - spec.zero_point) * spec.scale, np.float32) if spec.scale is not None else stored.astype(dtype)
