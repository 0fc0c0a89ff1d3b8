"""Runs one operator through a package on disk, and compares with a tolerance that follows from the precision."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from edgekit.formats import mlprogram
from tests import coreml_packages as packages

quick = settings(max_examples=6, derandomize=True, suppress_health_check=list(HealthCheck))
thorough = settings(quick, max_examples=15)

PRECISIONS = ("float32", "float16")


def run(
    kind: str, tensors: dict[str, np.ndarray], output: tuple[str, Sequence[int]], parameters: dict[str, Any] | None = None, tuple_input: str = ""
) -> np.ndarray:
    """One operator through a package on disk; float inputs take the output's precision where that is a float."""
    dtype = output[0] if output[0].startswith("float") else "float32"
    kinds = {n: ("float16" if dtype == "float16" else "float32") if a.dtype.kind == "f" else "int32" for n, a in tensors.items()}
    with tempfile.TemporaryDirectory() as folder:
        specs = {n: (kinds[n], a.shape) for n, a in tensors.items()}
        path = packages.one_operator(Path(folder) / "m.mlpackage", kind, specs, output, parameters, tuple_input)
        model = mlprogram.open(str(path), {})
        return mlprogram.session(model).run(tensors)["y"]


def close(got: np.ndarray, want: Any, dtype: str, scale: float = 1.0) -> None:
    want = np.asarray(want, np.float64)
    assert got.shape == want.shape
    if dtype == "float16":
        want = np.where(np.abs(want) >= 65520, np.copysign(np.inf, want), want)
        bound = np.abs(want) * 2**-10 + 2**-24 + 4e-7 * scale
    else:
        bound = np.abs(want) * 2e-6 + 4e-6 * scale
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    off = np.abs(got[finite].astype(np.float64) - want[finite]) - bound[finite]
    assert off.size == 0 or off.max() <= 0, f"off by {off.max()} beyond the bound"


def values(seed: int, shape: Sequence[int], dtype: str, low: float = -4, high: float = 4) -> np.ndarray:
    """Random values that the precision holds exactly, some of them at the edges: zeros, tiny and round ones."""
    rng = np.random.RandomState(seed)
    x = rng.uniform(low, high, shape).astype(np.float32)
    edges = np.array([v for v in (0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 6.0, 2**-14) if low <= v <= high] or [low], np.float32)
    x = np.where(rng.rand(*shape) < 0.2, rng.choice(edges, shape), x).astype(np.float32)
    return x.astype(dtype).astype(np.float32)


def run_first(kind: str, tensors: dict[str, np.ndarray], shape: Sequence[int], parameters: dict[str, Any], outputs: int) -> np.ndarray:
    """The first output of an operator that has several."""
    with tempfile.TemporaryDirectory() as folder:
        bound = {n: n for n in tensors} | {n: packages.literal(v) for n, v in parameters.items()}
        named = [packages.named(f"y{i}", "float32", shape if i == 0 else ()) for i in range(outputs)]
        body = packages.block([packages.operation(kind, "layer", bound, named)], ["y0"])
        data = packages.model({n: ("float32", a.shape) for n, a in tensors.items()}, {"y0": "float32"}, body)
        model = mlprogram.open(str(packages.write(Path(folder) / "m.mlpackage", data)), {})
        return mlprogram.session(model).run(tensors)["y0"]


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
seeds = st.integers(0, 2**16)
