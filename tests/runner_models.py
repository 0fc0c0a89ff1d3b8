"""Small models for both executors of jobs, in both formats, whose values are known by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgekit.tensors import TensorSpec
from tests import tiny

RNG = np.random.default_rng(5)


TWINS = [TensorSpec("diff", (1, 4), "float32"), TensorSpec("sum", (1, 4), "float32")]


def twins_tflite(path: Path) -> Path:
    """Two inputs and two outputs of one shape; signature, graph and operators each have another order."""
    tensors = [(name, "float32", (1, 4)) for name in ("a", "b", "s", "d")]
    nodes = [("SUB", ["a", "b"], ["d"]), ("ADD", ["a", "b"], ["s"])]
    names = {"y": "b", "x": "a", "diff": "d", "sum": "s"}
    return tiny.write_tflite(path / "twins.tflite", tensors, nodes, ["a", "b"], ["s", "d"], signature=names)


def twins_onnx(path: Path) -> Path:
    """The same in ONNX."""
    specs = {name: (name, "float32", (1, 4)) for name in ("x", "y", "sum", "diff")}
    nodes = [("Sub", ["x", "y"], ["diff"]), ("Add", ["x", "y"], ["sum"])]
    return tiny.write_onnx(path / "twins.onnx", [specs["x"], specs["y"]], [specs["sum"], specs["diff"]], nodes)


def twin_samples(count: int = 3) -> list[dict[str, Any]]:
    """Samples that name the inputs in changing order."""
    made = [{name: RNG.normal(size=(1, 4)).astype("f") for name in ("y", "x")} for _ in range(count)]
    return [dict(reversed(sample.items())) if i % 2 else sample for i, sample in enumerate(made)]


def accumulator(path: Path, kind: str) -> Path:
    """A streaming step: total' = total + x, and doubled = 2 total'."""
    names = ("x", "total", "next", "doubled")
    specs = [(name, "float32", (1, 3)) for name in names]
    if kind == "tflite":
        nodes = [("ADD", ["x", "total"], ["next"]), ("ADD", ["next", "next"], ["doubled"])]
        return tiny.write_tflite(path / "accumulator.tflite", specs, nodes, ["x", "total"], ["next", "doubled"])
    nodes = [("Add", ["x", "total"], ["next"]), ("Add", ["next", "next"], ["doubled"])]
    return tiny.write_onnx(path / "accumulator.onnx", specs[:2], specs[2:], nodes)


def half_delegated(path: Path) -> Path:
    """ADD, REVERSE_V2, ADD: XNNPACK has no kernel for the one in the middle."""
    tensors = [("x", "float32", (1, 4)), ("p", "float32", (1, 4)), ("axis", "int32", (1,)), ("r", "float32", (1, 4)), ("y", "float32", (1, 4))]
    nodes = [("ADD", ["x", "x"], ["p"]), ("REVERSE_V2", ["p", "axis"], ["r"]), ("ADD", ["r", "r"], ["y"])]
    return tiny.write_tflite(path / "half.tflite", tensors, nodes, ["x"], ["y"], constants={"axis": [1]})
