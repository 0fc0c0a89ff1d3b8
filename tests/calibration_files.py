"""Files of calibration data, and signatures that they fit."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from edgekit import calibration
from edgekit.errors import UsageError
from edgekit.tensors import Signature, TensorSpec

X = TensorSpec("x", (1, 4, 6), "float32")

ONE = Signature((X,), ())

TWO = Signature((X, TensorSpec("rate", (), "int64")), ())

IMAGE = Signature((TensorSpec("image", (1, 3, 8, 8), "float32"),), ())


def values(seed, shape=(1, 4, 6)):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def arrays(folder, count=3, shape=(1, 4, 6)):
    for i in range(count):
        np.save(folder / f"{i:02d}.npy", values(i, shape))
    return folder


def pictures(folder, count=3, size=(8, 8)):
    for i in range(count):
        pixels = np.random.default_rng(i).integers(0, 256, (size[1], size[0], 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    return folder


def refusal(reference, signature=ONE, stated=None):
    with pytest.raises(UsageError) as caught:
        calibration.load(str(reference), signature, stated)
    return f"{caught.value.message} | {caught.value.hint}"
