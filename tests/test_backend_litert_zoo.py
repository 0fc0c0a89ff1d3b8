"""EfficientNet-Lite0 with its trained weights, judged by running the written files in the stock interpreter on crops never seen."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit import target
from edgekit.backends import Candidate, Context, litert
from edgekit.formats import tflite
from edgekit.tensors import dequantize, quantize
from tests.decibels import sqnr_db

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def efficientnet(tmp_path_factory):
    converter, torch = pytest.importorskip("litert_torch"), pytest.importorskip("torch")
    from tests.zoo.crops import crops
    from tests.zoo.models import efficientnet_lite0

    folder = tmp_path_factory.mktemp("efficientnet")
    net, example = efficientnet_lite0()
    converter.convert(net, example).export(str(folder / "float.tflite"))
    model = tflite.open(str(folder / "float.tflite"), {})
    name = model.signature.inputs[0].name
    calibration = [{name: crop[None]} for crop in crops(64, seed=1)]
    build = litert.prepare(model, Context(target.load("android-arm64"), calibration, folder))
    evaluation = crops(120, seed=7)
    with torch.no_grad():
        reference = np.concatenate([net(torch.from_numpy(crop[None])).numpy() for crop in evaluation])
    return build, evaluation, reference


def outputs(artifact, evaluation):
    session, (given,), (taken,) = litert.emulate(artifact), artifact.signature.inputs, artifact.signature.outputs
    runs = [session.run({given.name: quantize(crop[None], given)})[taken.name] for crop in evaluation]
    return np.concatenate([dequantize(run, taken) for run in runs])


@pytest.mark.parametrize(
    ("precision", "least_db", "least_top1", "most_bytes", "count"),
    [
        ("w8", 34, 0.97, 5_400_000, 120),
        ("w8a8", 26, 0.93, 5_450_000, 120),
        ("w8a16", 31, 0.96, 5_500_000, 30),  # the interpreter's 16-bit kernels are slow
        ("w8-dynamic", 27, 0.93, 5_400_000, 120),
    ],
)
def test_eight_bits_are_as_good_as_their_bytes_allow(efficientnet, precision, least_db, least_top1, most_bytes, count):
    """A byte for each of 4.65 million weights, and scales, biases and graph. Fidelity has floors below what is reached: nothing gets worse unseen."""
    build, evaluation, reference = efficientnet
    artifact = build(Candidate(precision))
    found, reference = outputs(artifact, evaluation[:count]), reference[:count]
    assert artifact.path.stat().st_size <= most_bytes
    assert sqnr_db(reference, found) >= least_db
    assert (reference.argmax(1) == found.argmax(1)).mean() >= least_top1
