"""The zoo for android-arm64: each model becomes a verified bundle that a fresh process runs with equal values, or is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit import device, packager, tester
from edgekit.errors import ConversionError
from edgekit.runner import RunOptions
from tests.zoo import fetch, table

pytestmark = pytest.mark.slow

NAMES = (*table.LITERT_FLOAT, "basic-pitch-savedmodel", "basic-pitch-onnx")


@pytest.mark.parametrize("name", NAMES)
def test_a_zoo_model_becomes_a_verified_bundle(name: str, tmp_path: Path) -> None:
    row = table.rows()[name]
    np.savez(tmp_path / "samples.npz", **row.samples(8, 1))
    options = packager.Options(inputs=row.inputs, calibration=str(tmp_path / "samples.npz"), precision="fp32", out=tmp_path)
    outcome = packager.package(row.reference, "android-arm64", options)
    assert outcome.bundle is not None, outcome.findings
    assert outcome.manifest.golden.random < len(outcome.manifest.golden.samples)
    run = tester.test(outcome.bundle, [device.parse("local:")], tester.Options(RunOptions(min_runs=0)))
    report = run.reports[0]
    assert report.verdict == "passed", [finding.message for finding in report.findings]
    for comparison in report.comparisons:
        assert [output.name for output in comparison.outputs] == [spec.name for spec in outcome.manifest.source_signature.outputs]
        assert all(output.identical for output in comparison.outputs if comparison.against == "host")


def test_three_formats_of_one_model_give_the_same_outputs(tmp_path: Path) -> None:
    from edgekit import formats

    samples = table.audio("x", (1, 43844, 1))(1, 3)["x"][0]
    found = []
    for name in ("basic-pitch-savedmodel", "basic-pitch-onnx", "basic-pitch-tflite"):
        row = table.rows()[name]
        outcome = packager.package(row.reference, "android-arm64", packager.Options(inputs=row.inputs, precision="fp32", out=tmp_path / name))
        assert outcome.bundle is not None
        from edgekit import bundle

        with bundle.open(outcome.bundle) as opened:
            opened.extract(opened.manifest.artifact.main, tmp_path / name)
            model = formats.open(str(tmp_path / name / Path(opened.manifest.artifact.main).name))
        outputs = formats.session(model).run({model.signature.inputs[0].name: samples})
        found.append(sorted(outputs.values(), key=lambda array: (array.shape, float(array.mean()))))
    for other in found[1:]:
        for left, right in zip(found[0], other, strict=True):
            np.testing.assert_allclose(left, right, atol=2e-4)


def test_a_custom_operator_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="Landmarks2TransformMatrix"):
        packager.package(str(fetch.path("face-landmark-with-attention")), "android-arm64", packager.Options(out=tmp_path))
    assert list(tmp_path.glob("*.edgekit")) == []


@pytest.mark.parametrize("name", ["wake-word-alexa", "wake-word-hey-jarvis"])
def test_an_integer_model_keeps_its_own_precision(name: str, tmp_path: Path) -> None:
    outcome = packager.package(str(fetch.path(name)), "android-arm64", packager.Options(out=tmp_path))
    assert outcome.bundle is not None, outcome.findings
    assert outcome.manifest.artifact.precision == "w8a8"
    assert all(output.identical for output in outcome.manifest.loss)
