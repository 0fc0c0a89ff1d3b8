"""Small models and samples that the tests make themselves."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from edgekit import packager
from tests.tflite_build import Net


def dense(path: Path, sizes: tuple[int, ...] = (16, 8, 4), seed: int = 0, scale: float = 1.0) -> Path:
    """Fully connected layers with a ReLU between them, as `.tflite`: input `x`, output `scores`."""
    rng = np.random.RandomState(seed)
    net = Net()
    first = last = net.tensor("x", (1, sizes[0]))
    for number, (before, after) in enumerate(itertools.pairwise(sizes)):
        weights = net.constant(f"w{number}", (scale * rng.randn(after, before) / np.sqrt(before)).astype(np.float32))
        bias = net.constant(f"b{number}", rng.randn(after).astype(np.float32))
        end = number == len(sizes) - 2
        made = net.tensor("scores" if end else f"h{number}", (1, after))
        net.add("FULLY_CONNECTED", [last, weights, bias], [made], table="FullyConnectedOptions", fusedActivationFunction=0 if end else 1)
        last = made
    net.signature({"x": first}, {"scores": last})
    return net.write(path, [first], [last])


def samples(path: Path, name: str = "x", shape: tuple[int, ...] = (1, 16), count: int = 16, seed: int = 1) -> Path:
    """Normal samples as one `.npz`."""
    np.savez(path, **{name: np.random.RandomState(seed).randn(count, *shape).astype(np.float32)})
    return path


def two_heads(path: Path) -> Path:
    """Two outputs of one shape, `left` and `right`, from one input `x`, as `.tflite`."""
    rng = np.random.RandomState(3)
    net = Net()
    first = net.tensor("x", (1, 16))
    heads = {}
    for name in ("left", "right"):
        weights = net.constant(f"w_{name}", rng.randn(6, 16).astype(np.float32))
        bias = net.constant(f"b_{name}", rng.randn(6).astype(np.float32))
        heads[name] = net.tensor(name, (1, 6))
        net.add("FULLY_CONNECTED", [first, weights, bias], [heads[name]], table="FullyConnectedOptions")
    net.signature({"x": first}, heads)
    return net.write(path, [first], list(heads.values()))


def dense_bundle(folder: Path) -> Path:
    """A float bundle of `dense` for Android, whose golden samples are real ones."""
    options = packager.Options(calibration=str(samples(folder / "x.npz")), precision="fp32", out=folder, rebuild=True)
    made = packager.package(str(dense(folder / "dense.tflite")), "android-arm64", options).bundle
    assert made is not None
    return made
