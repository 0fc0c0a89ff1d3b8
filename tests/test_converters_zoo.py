"""Trained models on their way to LiteRT, against the float source on natural or random inputs."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit import formats, tools
from edgekit.converters import route
from tests.zoo import fetch

pytestmark = pytest.mark.slow
TOLERANCE = 1e-3
"""Largest difference allowed, relative to the output's largest magnitude."""

ONNX = {
    "ppocr-cls": {"x": (1, 3, 48, 192)},
    "ppocr-det": {"x": (1, 3, 320, 320)},
    "silero-vad": {},
    "magika": {},
    "basic-pitch-onnx": {},
}


@pytest.fixture(scope="module")
def onnx2tf():
    pytest.importorskip("uv")
    found = tools.install("onnx2tf")
    if found.requirements[0] == "onnx2tf==1.29.24":
        pytest.skip("this machine has no Python 3.12 or newer: the older onnx2tf does not take all of these")


def _to_litert(model, workdir):
    (hop,) = route(model.format, ["tflite"])
    made = hop.convert(model, workdir)
    assert [(s.name, s.shape, s.layout) for s in made.signature.inputs] == [(s.name, s.shape, s.layout) for s in model.signature.inputs]
    assert [(s.name, s.shape, s.layout) for s in made.signature.outputs] == [(s.name, s.shape, s.layout) for s in model.signature.outputs]
    return made


def _random(model, seed):
    rng = np.random.RandomState(seed)
    drawn = {s.name: rng.randint(0, 256, s.shape) if "int" in s.dtype else rng.standard_normal(s.shape) for s in model.signature.inputs}
    return {s.name: drawn[s.name].astype(s.dtype) for s in model.signature.inputs}


def _assert_close(model, made, samples):
    source, artifact = formats.session(model), formats.session(made)
    for feeds in samples:
        right, got = source.run(feeds), artifact.run(feeds)
        assert list(got) == list(right)
        for name, wanted in right.items():
            spread = float(wanted.max() - wanted.min())
            assert spread > 1e-6 or wanted.size == 1, f"{name} is constant: nothing is compared"
            assert float(np.abs(got[name] - wanted).max()) <= TOLERANCE * float(np.abs(wanted).max()), name


def _crops(name):
    pytest.importorskip("PIL")
    from tests.zoo.crops import crops

    return [{name: image[None]} for image in crops(3, seed=2)]


@pytest.mark.parametrize("given", ["function", "program", "script"])
@pytest.mark.filterwarnings("ignore")
def test_efficientnet_lite0(given, tmp_path):
    torch = pytest.importorskip("torch")
    reference, inputs = "tests.zoo.models:efficientnet_lite0", {}
    if given != "function":
        from tests.zoo.models import efficientnet_lite0

        net, examples = efficientnet_lite0()
        reference = str(tmp_path / ("net.pt2" if given == "program" else "net.pt"))
        if given == "program":
            torch.export.save(torch.export.export(net, examples), reference)
        else:
            net.set_swish(memory_efficient=False) if hasattr(net, "set_swish") else None
            torch.jit.trace(net, examples).save(reference)
            inputs = {"inputs": (1, 3, 224, 224)}
    model = formats.open(reference, inputs)
    _assert_close(model, _to_litert(model, tmp_path), _crops(model.signature.inputs[0].name))


@pytest.fixture(scope="module")
def lively_mobilenet():
    """The zoo's MobileNetV2 with the statistics of a batch: as initialized, its output does not depend on the input."""
    pytest.importorskip("tensorflow")
    from tests.zoo.models import mobilenet_v2

    net = mobilenet_v2()
    for layer in net.layers:
        if type(layer).__name__ == "BatchNormalization":
            layer.momentum = 0.0
    net(np.random.RandomState(9).standard_normal((16, 96, 96, 3)).astype(np.float32), training=True)
    return net


@pytest.mark.parametrize("stored", ["net.keras", "net.h5", "net"])
@pytest.mark.filterwarnings("ignore")
def test_mobilenet_v2(lively_mobilenet, stored, tmp_path):
    path = tmp_path / stored
    lively_mobilenet.save(path) if path.suffix else lively_mobilenet.export(path, verbose=False)
    model = formats.open(str(path))
    _assert_close(model, _to_litert(model, tmp_path), [_random(model, seed) for seed in range(3)])


@pytest.mark.parametrize("name", ONNX)
def test_onnx_models(name, tmp_path, onnx2tf):
    model = formats.open(str(fetch.path(name)), ONNX[name])
    _assert_close(model, _to_litert(model, tmp_path), [_random(model, seed) for seed in range(3)])


def test_basic_pitch_is_one_model_in_three_formats(tmp_path, onnx2tf):
    pytest.importorskip("tensorflow")
    audio = np.random.RandomState(0).randn(1, 43844, 1).astype(np.float32)
    onnx_names = {"StatefulPartitionedCall:0": "contour", "StatefulPartitionedCall:1": "note", "StatefulPartitionedCall:2": "onset"}
    found = {}
    for kind in ("savedmodel", "onnx", "tflite"):
        model = formats.open(str(fetch.path(f"basic-pitch-{kind}")))
        made = model if kind == "tflite" else _to_litert(model, tmp_path)
        outputs = formats.session(made).run({made.signature.inputs[0].name: audio})
        found[kind] = {onnx_names.get(name, name): value for name, value in outputs.items()}
    for kind in ("onnx", "tflite"):
        for name, right in found["savedmodel"].items():
            np.testing.assert_allclose(found[kind][name], right, atol=TOLERANCE * float(np.abs(right).max()), err_msg=f"{kind} {name}")
