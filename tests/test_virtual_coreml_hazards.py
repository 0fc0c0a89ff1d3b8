"""Values and shapes that half precision or the neural engine cannot hold, found by running a program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit.virtual.coreml import hazards, package
from tests import coreml_packages as packages

pytest.importorskip("torch")


def chain(folder: Path, dtype: str) -> package.Package:
    """exp, a sum over 3 values, log: the sum of exponentials leaves the half range from about 10 on."""
    named, op = packages.named, packages.operation
    steps = [
        op("exp", "grow", {"x": "x"}, [named("e", dtype, (3,))]),
        op(
            "reduce_sum",
            "total",
            {"x": "e", "axes": packages.literal(np.array([0], np.int32)), "keep_dims": packages.literal(np.bool_(False))},
            [named("s", dtype, ())],
        ),
        op("log", "back", {"x": "s"}, [named("y", dtype, ())]),
    ]
    return package.read(packages.write(folder, packages.model({"x": (dtype, (3,))}, {"y": dtype}, packages.block(steps, ["y"]))))


def test_overflow_and_underflow_are_named_by_operator(tmp_path: Path) -> None:
    for dtype in ("float16", "float32"):
        found = hazards.hazards(
            chain(tmp_path / f"{dtype}.mlpackage", dtype), [{"x": np.array([12, 0, -12], np.float32)}, {"x": np.array([1, 0, 1], np.float32)}]
        )
        by = {(h.kind, h.layer): h for h in found}
        assert by["overflow", "grow"].value == pytest.approx(np.exp(12), rel=1e-5)
        assert (by["overflow", "grow"].count, by["overflow", "grow"].total) == (1, 6)
        assert by["underflow", "grow"].value == pytest.approx(np.exp(-12), rel=1e-5)
        assert (("infinity", "back") in by) == (dtype == "float16")
        assert (("overflow", "total") in by) == (dtype == "float32")
        assert "above 65504" in by["overflow", "grow"].text
    assert hazards.hazards(chain(tmp_path / "calm.mlpackage", "float16"), [{"x": np.array([1, 0, 2], np.float32)}]) == ()


def test_infinite_masks_and_shapes_are_named(tmp_path: Path) -> None:
    named, op = packages.named, packages.operation
    mask = np.array([0, -np.inf], np.float32)
    steps = [
        op("const", "mask", {}, [named("mask", "float32", (2,))], {"val": packages.literal(mask)}),
        op("add", "masked", {"x": "x", "y": "mask"}, [named("m", "float32", (1, 1, 1, 1, 1, 2))]),
        op(
            "tile",
            "wide",
            {"x": "m", "reps": packages.literal(np.array([1, 1, 1, 1, 1, 9000], np.int32))},
            [named("y", "float32", (1, 1, 1, 1, 1, 18000))],
        ),
    ]
    data = packages.model({"x": ("float32", (1, 1, 1, 1, 1, 2))}, {"y": "float32"}, packages.block(steps, ["y"]))
    found = hazards.hazards(package.read(packages.write(tmp_path / "m.mlpackage", data)), [{"x": np.zeros((1, 1, 1, 1, 1, 2), np.float32)}])
    kinds = {(h.kind, h.layer) for h in found}
    assert {("infinite constant", "mask"), ("infinity", "masked"), ("rank", "masked"), ("dimension", "wide")} <= kinds


def test_a_small_difference_of_large_values_is_named(tmp_path: Path) -> None:
    """The variance as the mean of squares less the square of the mean: of a mean of 30, little is left of a variance of 1."""
    named, op, literal = packages.named, packages.operation, packages.literal
    over = {"axes": literal(np.array([0], np.int32)), "keep_dims": literal(np.bool_(True))}
    steps = [
        op("square", "squares", {"x": "x"}, [named("q", "float32", (64,))]),
        op("reduce_mean", "of_squares", {"x": "q", **over}, [named("a", "float32", (1,))]),
        op("reduce_mean", "middle", {"x": "x", **over}, [named("m", "float32", (1,))]),
        op("square", "of_mean", {"x": "m"}, [named("b", "float32", (1,))]),
        op("sub", "variance", {"x": "a", "y": "b"}, [named("y", "float32", (1,))]),
    ]
    made = package.read(
        packages.write(tmp_path / "m.mlpackage", packages.model({"x": ("float32", (64,))}, {"y": "float32"}, packages.block(steps, ["y"])))
    )
    spread = np.linspace(-1, 1, 64, dtype=np.float32)
    (found,) = hazards.hazards(made, [{"x": spread + 30}])
    assert (found.kind, found.layer) == ("cancellation", "variance") and found.value == pytest.approx(float(spread.var()), rel=1e-2)
    assert hazards.hazards(made, [{"x": spread + 2}]) == ()


def test_large_angles_are_named(tmp_path: Path) -> None:
    steps = [packages.operation("sin", "wave", {"x": "x"}, [packages.named("y", "float32", (3,))])]
    data = packages.model({"x": ("float32", (3,))}, {"y": "float32"}, packages.block(steps, ["y"]))
    made = package.read(packages.write(tmp_path / "m.mlpackage", data))
    (found,) = hazards.hazards(made, [{"x": np.array([1, 2, 900], np.float32)}])
    assert (found.kind, found.layer, found.value) == ("phase", "wave", 900)
    assert hazards.hazards(made, [{"x": np.array([1, 2, 30], np.float32)}]) == ()
