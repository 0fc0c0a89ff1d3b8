"""Trained models: a package made by its authors against its siblings in other formats, and EfficientNet-Lite0 against torch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import converters, formats
from edgekit.formats import mlprogram
from tests.decibels import sqnr_db
from tests.zoo import crops, fetch, models, table

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

OUTPUTS = {"contour": "Identity", "note": "Identity_1", "onset": "Identity_2"}
ONNX_NAMES = {"contour": "StatefulPartitionedCall:0", "note": "StatefulPartitionedCall:1", "onset": "StatefulPartitionedCall:2"}


def audio(seed: int) -> np.ndarray[Any, Any]:
    """Two tones, one fading, over noise: two seconds at 22050 Hz, as the model takes them."""
    rng, at = np.random.RandomState(seed), np.arange(43844) / 22050
    noise = rng.randn(43844) if seed % 2 else np.convolve(rng.randn(43844), np.ones(16) / 16, "same")
    tones = 0.3 * np.sin(2 * np.pi * 440 * at) + 0.2 * np.sin(2 * np.pi * (800 + 200 * seed) * at) * np.exp(-at)
    return (tones + 0.1 * noise).astype(np.float32).reshape(1, -1, 1)


def run_onnx(x: Any) -> dict[str, Any]:
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(str(fetch.path("basic-pitch-onnx")))
    values = session.run(list(ONNX_NAMES.values()), {session.get_inputs()[0].name: x})
    return dict(zip(ONNX_NAMES, values, strict=True))


def run_tflite(x: Any) -> dict[str, Any]:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(str(fetch.path("basic-pitch-tflite")))
    return dict(interpreter.get_signature_runner()(input_2=x))


def run_savedmodel(x: Any) -> dict[str, Any]:
    tf = pytest.importorskip("tensorflow")
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(fetch.path("basic-pitch-savedmodel")))
        signature = loaded.signature_def["serving_default"]
        outputs = {name: tensor.name for name, tensor in signature.outputs.items()}
        return dict(session.run(outputs, {next(iter(signature.inputs.values())).name: x}))


@pytest.mark.parametrize("sibling", [run_onnx, run_tflite, run_savedmodel])
def test_basic_pitch_agrees_with_its_siblings(sibling: Any) -> None:
    """The package is a float32 program. On a pure tone all are ill-conditioned (the log of rounding noise), hence the noise."""
    model = mlprogram.open(str(fetch.path("basic-pitch-mlpackage")), {})
    session = mlprogram.session(model)
    for seed in range(4):
        x = audio(seed)
        got, want = session.run({"input_2": x}), sibling(x)
        for name, own in OUTPUTS.items():
            assert np.abs(got[own] - want[name]).max() <= 1e-5


def test_basic_pitch_on_chords_is_as_near_to_the_exact_result_as_onnx_runtime(tmp_path: Path) -> None:
    """On chords over little noise single precision itself decides: the normalized logarithm hangs on the weakest band. Exact is the ONNX file
    computed by torch in double precision.
    """
    exact = in_double(tmp_path)
    session = mlprogram.session(mlprogram.open(str(fetch.path("basic-pitch-mlpackage")), {}))
    for x in table.audio("x", (1, 43844, 1))(6, 7)["x"]:
        got, sibling, wanted = session.run({"input_2": x}), run_onnx(x), exact(x)
        off = max(float(np.abs(got[own] - wanted[name]).max()) for name, own in OUTPUTS.items())
        theirs = max(float(np.abs(sibling[name] - wanted[name]).max()) for name in OUTPUTS)
        assert off <= max(1e-5, 1.5 * theirs)


def in_double(folder: Path) -> Any:
    pytest.importorskip("onnx")
    row = table.rows()["basic-pitch-onnx"]
    (hop,) = converters.route("onnx", ("torch",))
    model = hop.convert(formats.open(row.reference, row.inputs), folder)
    module, names = model.handle.module().double(), [spec.name for spec in model.signature.outputs]

    def run(x: Any) -> dict[str, Any]:
        with torch.no_grad():
            made = dict(zip(names, module(torch.from_numpy(x).double()), strict=True))
        return {name: made[theirs].numpy() for name, theirs in ONNX_NAMES.items()}

    return run


@pytest.fixture(scope="module")
def efficientnet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Path]]:
    """The trained net, and its packages by precision."""
    ct = pytest.importorskip("coremltools")
    net, (example,) = models.efficientnet_lite0()
    exported = torch.export.export(net.eval(), (example,)).run_decompositions({})
    paths = {}
    for name, precision in (("half", ct.precision.FLOAT16), ("single", ct.precision.FLOAT32)):
        fixed = {"convert_to": "mlprogram", "minimum_deployment_target": ct.target.iOS16, "skip_model_load": True}
        paths[name] = tmp_path_factory.mktemp("efficientnet") / f"{name}.mlpackage"
        ct.convert(exported, compute_precision=precision, **fixed).save(str(paths[name]))
    return net, paths


def logits(path: Path, images: Any) -> Any:
    model = mlprogram.open(str(path), {})
    session = mlprogram.session(model)
    return np.concatenate([session.run({model.signature.inputs[0].name: image[None]})[model.signature.outputs[0].name] for image in images])


def half_weights(net: Any) -> Any:
    """The net with batch normalization folded and weights rounded to half, which is what the converter stores, computed by torch in float32."""
    import copy

    from torch.fx.experimental.optimization import fuse

    rounded = fuse(copy.deepcopy(net))
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.half().float())
    return rounded


def test_efficientnet_lite0(efficientnet: tuple[Any, dict[str, Path]]) -> None:
    """Half loses what rounding the folded weights loses: two depthwise layers with weights up to 18 cancel large means.

    One rounding of the weights differs from another by a few dB, and the activations' own rounding adds to it.
    """
    net, paths = efficientnet
    images = crops.crops(4, seed=7)
    with torch.no_grad():
        want = torch.cat([net(torch.from_numpy(x[None])) for x in images]).numpy()
        stored = torch.cat([half_weights(net)(torch.from_numpy(x[None])) for x in images]).numpy()
    assert sqnr_db(want, logits(paths["single"], images)) >= 100
    half = logits(paths["half"], images)
    assert (half.argmax(1) == want.argmax(1)).all()
    assert sqnr_db(want, half) >= sqnr_db(want, stored) - 4
    assert sqnr_db(want, half) >= 40


def test_efficientnet_lite0_is_within_five_times_of_torch(efficientnet: tuple[Any, dict[str, Path]]) -> None:
    net, paths = efficientnet
    image = crops.crops(1, seed=7)
    model = mlprogram.open(str(paths["half"]), {})
    session, name = mlprogram.session(model), model.signature.inputs[0].name
    tensor = torch.from_numpy(image)
    with torch.inference_mode():
        eager = fastest(lambda: net(tensor))
    assert fastest(lambda: session.run({name: image})) <= 5 * eager


def fastest(work: Any) -> float:
    """Seconds of the best of ten runs, after two."""
    times = []
    for _ in range(12):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times[2:])
