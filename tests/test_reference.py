"""The float source is run once a sample, and from one place."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from edgekit import formats
from edgekit.formats import Model
from edgekit.reference import Reference
from edgekit.tensors import Arrays, Signature, TensorSpec


@dataclasses.dataclass
class Doubling:
    runs: int = 0

    def run(self, inputs: Arrays) -> dict[str, Any]:
        self.runs += 1
        return {"y": inputs["x"] * 2}


def test_each_sample_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Doubling()
    monkeypatch.setattr(formats, "session", lambda model: session)
    spec = TensorSpec("x", (2,), "float32")
    reference = Reference(Model("torch", "m", Signature((spec,), (TensorSpec("y", (2,), "float32"),)), "0"))
    one, two = {"x": np.array([1, 2], "float32")}, {"x": np.array([3, 4], "float32")}
    first = reference.run([one, two])
    again = reference.run([two, one])
    assert session.runs == 2
    assert [row["y"].tolist() for row in first] == [[2, 4], [6, 8]]
    assert [row["y"].tolist() for row in again] == [[6, 8], [2, 4]]
