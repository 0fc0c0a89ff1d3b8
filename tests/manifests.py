"""A manifest with nothing special in it, for tests that change one field."""

from __future__ import annotations

from edgekit import target
from edgekit.budget import Part, Usage
from edgekit.manifest import ArtifactEntry, Golden, Manifest, Source
from edgekit.planner import Plan
from edgekit.tensors import Signature, TensorSpec


def manifest(**changes: object) -> Manifest:
    signature = Signature((TensorSpec("x", (1, 4), "float32"),), (TensorSpec("y", (1, 4), "float32"),))
    fields: dict[str, object] = {
        "edgekit": "0",
        "name": "m",
        "target": target.load("android-arm64"),
        "source": Source("m", "tflite", "0" * 64),
        "signature": signature,
        "source_signature": signature,
        "artifact": ArtifactEntry("artifact/m.tflite", "tflite", "fp32", 700, "0" * 64),
        "golden": Golden(("a.png",), 0),
        "verdicts": (),
        "plan": Plan((), None, "fidelity"),
        "usage": Usage((Part("m.tflite", "model", 700, 100, "measured"),)),
        "loss": (),
    }
    return Manifest(**(fields | changes))  # type: ignore[arg-type]
