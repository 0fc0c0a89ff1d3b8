"""Image inputs: pixels in, the outputs of the float model on the preprocessed tensor out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import bundle, device, formats, hops, packager, pixels, runner, tester
from edgekit.errors import UsageError
from edgekit.preprocess import Preprocess, apply
from edgekit.tensors import Pixels, Signature, TensorSpec, dequantize, quantize
from edgekit.virtual.coreml import package, spec
from edgekit.virtual.coreml.session import _planar

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PREPROCESS = Preprocess(resize=(20, 12), mean=MEAN, std=STD)


def picture(seed: int = 0, size: tuple[int, int] = (12, 20)) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


@pytest.mark.parametrize("order", ["RGB", "BGR"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_pixels_become_what_the_preprocessing_makes_of_them_and_back(layout: str, order: str) -> None:
    shape = (1, 3, 12, 20) if layout == "NCHW" else (1, 12, 20, 3)
    source = TensorSpec("image", shape, "float32", layout=layout)
    stated = Preprocess(layout=layout, order=order, mean=MEAN, std=STD)  # type: ignore[arg-type]  # pytest's parameters are plain texts
    (edge,) = pixels.edge(Signature((source,), ()), stated).inputs
    assert (edge.shape, edge.dtype, edge.layout) == ((1, 12, 20, 3), "uint8", "NHWC") and edge.real == source
    wanted = apply(picture(), stated, source)
    np.testing.assert_allclose(dequantize(picture()[None], edge), wanted, atol=1e-6)
    np.testing.assert_array_equal(quantize(wanted, edge), picture()[None])


def test_values_that_no_pixel_has_are_counted_and_clipped() -> None:
    signature = Signature((TensorSpec("x", (1, 1, 2, 2), "float32", layout="NCHW"),), ())
    edge = pixels.edge(signature, Preprocess(order="GRAY"))
    whole, half, beyond = (np.full((1, 1, 2, 2), value, np.float32) for value in (3 / 255, 3.5 / 255, 7))
    assert pixels.strangers([{"x": whole}, {"x": half}, {"x": beyond}], edge) == 2
    assert quantize(beyond, edge.inputs[0]).tolist() == [[[[255], [255]], [[255], [255]]]]


@pytest.mark.parametrize(
    ("signature", "preprocess", "message"),
    [
        (((1, 3, 4, 5), "float32"), None, "not stated"),
        (((1, 7), "float32"), PREPROCESS, "no image input"),
        (((3, 4, 5), "float32"), Preprocess(), "leading axis"),
        (((1, 3, 4, 5), "int32"), Preprocess(), "not float32"),
        (((1, 3, 4, 5), "float32"), Preprocess(std=(1.0, 0.0, 1.0)), "std of 0"),
    ],
)
def test_what_cannot_be_an_image_is_refused(signature: Any, preprocess: Preprocess | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pixels.edge(Signature((TensorSpec("x", *signature),), ()), preprocess)


def test_targets_without_image_inputs_say_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="linux-arm64 has no image inputs"):
        packager.package(str(tmp_path / "absent.onnx"), "linux-arm64", packager.Options(io="image", out=tmp_path))


def test_the_interpreter_takes_pictures_in_the_program_s_order() -> None:
    image = spec.Feature("image", "uint8", (1, 3, 12, 20), 3)
    rows = picture()[None]
    np.testing.assert_array_equal(_planar(rows, image), rows.transpose(0, 3, 1, 2))
    blue_first = spec.Feature("image", "uint8", (1, 3, 12, 20), 3, reversed=True)
    np.testing.assert_array_equal(_planar(rows, blue_first), rows[..., ::-1].transpose(0, 3, 1, 2))
    planar = np.zeros((1, 3, 12, 20), np.float32)
    assert _planar(planar, blue_first) is planar


def test_core_ml_on_a_mac_gets_pictures() -> None:
    pytest.importorskip("PIL")
    from edgekit.hostruntimes._coreml_mac import _picture

    color, gray = _picture(picture()[None]), _picture(picture()[None, :, :, :1])
    assert (color.mode, color.size, gray.mode, gray.size) == ("RGB", (20, 12), "L", (20, 12))
    np.testing.assert_array_equal(np.asarray(color), picture())
    np.testing.assert_array_equal(np.asarray(gray), picture()[:, :, 0])


def test_random_samples_are_pixels() -> None:
    edge = pixels.edge(Signature((TensorSpec("x", (1, 3, 4, 5), "float32"),), ()), PREPROCESS)
    from edgekit import calibration

    samples = calibration.random_samples(edge, 2, 1)
    assert samples[0]["x"].shape == (1, 3, 4, 5) and pixels.strangers(samples, edge) == 0
    assert len(np.unique(quantize(samples[0]["x"], edge.inputs[0]))) > 20


def test_a_spec_without_pixels_is_written_as_before() -> None:
    assert TensorSpec("x", (1,), "uint8", 0.5, 3).pixels is None and Pixels("NCHW", (1.0,), (0.0,)).reversed is False


class Net:
    """A convolution with padding, so that where the border is filled matters, and a head that mixes the channels."""

    def __new__(cls) -> Any:
        import torch
        from torch import nn

        torch.manual_seed(2)
        return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)).eval()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    from PIL import Image

    folder = tmp_path / "pictures"
    folder.mkdir()
    for seed in range(6):
        Image.fromarray(picture(seed, (30, 40))).save(folder / f"{seed}.png")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("order", "precision", "most"), [("RGB", "fp32", 2e-5), ("BGR", "fp32", 2e-5), ("BGR", "fp16", 8e-3), ("RGB", "w8", 0.05)])
def test_a_torch_model_takes_pictures(order: Any, precision: str, most: float, tmp_path: Path, pictures: Path) -> None:
    import torch

    pytest.importorskip("coremltools")
    torch.export.save(torch.export.export(Net(), (torch.zeros(1, 3, 12, 20),)), tmp_path / "net.pt2")
    check(tmp_path / "net.pt2", Preprocess((20, 12), mean=MEAN, std=STD, order=order), precision, most, pictures)


@pytest.mark.slow
def test_a_keras_model_takes_pictures(tmp_path: Path, pictures: Path) -> None:
    keras = pytest.importorskip("keras")
    pytest.importorskip("coremltools")
    keras.utils.set_random_seed(1)
    image = keras.Input((12, 20, 3), batch_size=1, name="photo")
    keras.Model(image, keras.layers.Dense(5)(keras.layers.Conv2D(4, 3, padding="same", activation="relu")(image))).save(tmp_path / "net.keras")
    check(tmp_path / "net.keras", Preprocess((20, 12), mean=(0.5,), std=(0.25,)), "fp32", 2e-5, pictures)


def check(model: Path, preprocess: Preprocess, precision: str, most: float, pictures: Path) -> None:
    """Package it, and hold what the package answers to pictures to the float source on the preprocessed tensor, and so the device."""
    options = packager.Options(calibration=str(pictures), preprocess=preprocess, precision=precision, io="image", out=model.parent)
    made = packager.package(str(model), "ios-coreml", options).bundle
    assert made is not None
    source = formats.open(str(model))
    with bundle.open(made) as opened:
        (edge,) = opened.manifest.signature.inputs
        assert (edge.dtype, edge.shape) == ("uint8", (1, 12, 20, 3)) and edge.pixels is not None
        opened.extract(opened.manifest.artifact.main, model.parent)
        (feature,) = package.read(model.parent / Path(opened.manifest.artifact.main).name).program.features_in
        assert (feature.channels, feature.shape, feature.reversed) == (3, (1, 3, 12, 20), preprocess.order == "BGR")
        fed = runner.stored_inputs(opened, 0)[0]
        assert fed.dtype == np.uint8 and fed.shape == (1, 12, 20, 3)
        wanted = hops.run(formats.session(source), source.signature, [{edge.name: opened.golden("inputs", 0, 0)}])[0]
        found = runner.golden(opened, "host")[0]
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, atol=most)
    assert tester.test(made, [device.parse("virtual:coreml")], tester.Options(runner.RunOptions(min_runs=0))).reports[0].verdict == "passed"
