"""Layers of field reports through ONNX: the export and every precision against PyTorch, and on the HTP simulator what it can take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import converters, formats, target
from edgekit.backends import Candidate, Context, onnxruntime, qnn
from edgekit.formats import Model
from tests.decibels import sqnr_db

pytestmark = pytest.mark.slow

NAMES = ("output_padding", "uneven_pool", "recurrent", "bilinear", "slopes", "unshuffled", "normalized")
ON_HEXAGON = ("output_padding", "bilinear", "slopes", "unshuffled", "normalized")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Model, Model]]:
    """Source and ONNX model by name."""
    found = {}
    for name in NAMES:
        source = formats.open(f"tests.e2e.ort_models:{name}")
        (hop,) = converters.route(source.format, ("onnx",))
        found[name] = source, hop.convert(source, tmp_path_factory.mktemp(name))
    return found


def samples(model: Model, count: int, seed: int) -> list[dict[str, Any]]:
    (spec,) = model.signature.inputs
    rng = np.random.default_rng(seed)
    return [{spec.name: rng.uniform(-1, 1, spec.shape).astype(np.float32)} for _ in range(count)]


def fidelity_db(source: Model, backend: Any, target_name: str, model: Model, precision: str, folder: Path) -> float:
    folder.mkdir()
    artifact = backend.prepare(model, Context(target.load(target_name), samples(model, 6, 1), folder))(Candidate(precision, "nearest"))
    float_model, built = formats.session(source), backend.emulate(artifact)
    fed = samples(model, 4, 2)
    right, got = (np.concatenate([next(iter(s.run(x).values())).ravel() for x in fed]) for s in (float_model, built))
    return sqnr_db(right, got)


@pytest.mark.parametrize("name", NAMES)
def test_onnx_runtime_computes_what_torch_does(name: str, exported: dict[str, tuple[Model, Model]], tmp_path: Path) -> None:
    source, model = exported[name]
    least = {"fp32": 90.0, "fp16": 55.0, "w8": 30.0, "w8a8": 20.0}
    found = {p: fidelity_db(source, onnxruntime, "android-arm64-ort", model, p, tmp_path / p) for p in least}
    assert all(found[p] >= least[p] for p in least), found


@pytest.mark.parametrize("name", ON_HEXAGON)
def test_the_simulator_computes_what_torch_does(name: str, exported: dict[str, tuple[Model, Model]], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    source, model = exported[name]
    assert fidelity_db(source, qnn, "hexagon-v75", model, "a16w8", tmp_path / "h") >= 30.0
