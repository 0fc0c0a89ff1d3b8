"""Which samples calibrate, which judge, and which travel in the bundle."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from edgekit import calibration, pixels
from edgekit.preprocess import Preprocess
from edgekit.tensors import Array, Arrays, Signature

GOLDEN_USER = 4
GOLDEN_RANDOM = 1
HELD_OUT_SHARE = 4
HELD_OUT_MAX = 64
RANDOM_ONLY = 3
STREAM_STEPS = 50
STREAM_BYTES = 1_000_000
"""A model that keeps state is judged on so many steps in a row, all of which travel, or on as many as these bytes of inputs hold."""
_SEED = 20


@dataclasses.dataclass(frozen=True)
class Samples:
    """Inputs in the model's own types. `train` calibrates, `held_out` judges; both are the user's, and empty without data.

    `names` are the held-out samples' files. `random` are always there: random inputs alone are no proof, but find what data misses. With
    `stream` the samples are the steps of a stream, in order, for a model that keeps state: the same ones calibrate and judge.
    """

    train: tuple[Arrays, ...]
    held_out: tuple[Arrays, ...]
    names: tuple[str, ...]
    random: tuple[Arrays, ...]
    notices: tuple[str, ...]
    stream: bool = False

    @property
    def judged(self) -> tuple[Arrays, ...]:
        """Samples that fidelity is measured on: the user's, or random ones where there are none."""
        return self.held_out or self.random

    @property
    def hop(self) -> tuple[Arrays, ...]:
        """A few samples of both kinds, to compare a conversion on."""
        return self.held_out[:2] + self.random[:2]

    @property
    def golden(self) -> tuple[tuple[Arrays, ...], tuple[str, ...], int]:
        """Samples that travel in the bundle, their names, and how many of them are random."""
        user = self.held_out if self.stream else self.held_out[:GOLDEN_USER]
        random = self.random[:GOLDEN_RANDOM] if user else self.random
        return user + random, self.names[: len(user)] + tuple(f"random-{i}" for i in range(len(random))), len(random)


def answered(data: Samples, run: Callable[[Sequence[Arrays]], Sequence[Arrays]]) -> Samples:
    """`data` with random samples to which the float source has finite answers: their magnitudes, or those below one, where it takes the root or
    the logarithm of what it is given. Without such a sample the user's own must do.
    """
    for change, told in ((None, ()), (_magnitude, ("positive",)), (_fraction, ("between 0 and 1",))):
        random = data.random if change is None else tuple({name: change(array) for name, array in sample.items()} for sample in data.random)
        if all(_finite(outputs) for outputs in run(random)):
            notices = tuple(f"random inputs are {which}: of others the model computes what is not finite" for which in told)
            return dataclasses.replace(data, random=random, notices=(*data.notices, *notices))
    if not data.held_out:
        return data
    notice = "no random input was compared: of those tried the model computes what is not finite"
    return dataclasses.replace(data, random=(), notices=(*data.notices, notice))


def _magnitude(array: Array) -> Array:
    import numpy as np

    return np.abs(array) if array.dtype.kind == "f" else array


def _fraction(array: Array) -> Array:
    import numpy as np

    return (np.abs(array) % 1).astype(array.dtype) if array.dtype.kind == "f" else array


def _finite(outputs: Arrays) -> bool:
    import numpy as np

    return all(bool(np.isfinite(array).all()) for array in outputs.values())


def load(
    reference: str | None, signature: Signature, preprocess: Preprocess | None, edge: Signature | None = None, *, stream: bool = False
) -> Samples:
    """The user's samples, split once and for all, and random ones. Raises `UsageError` for data that cannot be used, by file name.

    `edge` is the artifact's signature where not every real value can cross it: random samples are then of those that can. With `stream` samples
    stay together in their order.
    """
    random = calibration.random_samples(edge or signature, _steps(signature) if stream else RANDOM_ONLY, _SEED)
    if reference is None:
        notice = "no --calibration data: fidelity was judged on random inputs alone, which real inputs may contradict"
        return Samples((), (), (), random, (notice,), stream)
    found = calibration.load(reference, signature, preprocess)
    strangers = pixels.strangers(found.samples, edge) if edge else 0
    if strangers:
        told = f"{strangers} of {len(found.samples)} samples are no 8-bit pixels behind the preprocessing: the nearest pixels stand for them"
        found = dataclasses.replace(found, notices=(*found.notices, told))
    if stream:
        return _in_a_row(found, random, _steps(signature))
    train, held_out = calibration.split(found, min(HELD_OUT_MAX, max(1, len(found.samples) // HELD_OUT_SHARE)))
    return Samples(train.samples, held_out.samples, held_out.names, random, found.notices)


def _in_a_row(found: calibration.Calibration, random: tuple[Arrays, ...], most: int) -> Samples:
    count = min(most, len(found.samples))
    told = f"the model keeps state: its samples are the steps of one stream, in order, and the first {count} are compared step by step"
    return Samples(found.samples, found.samples[:count], found.names[:count], random, (*found.notices, told), stream=True)


def _steps(signature: Signature) -> int:
    import numpy as np

    step_bytes = sum(spec.elements * np.dtype(spec.real.dtype).itemsize for spec in signature.inputs)
    return max(GOLDEN_USER, min(STREAM_STEPS, STREAM_BYTES // max(step_bytes, 1)))
