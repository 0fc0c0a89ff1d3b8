"""The Android library of a trained network: compiled, and its AAR's own classes run on a desktop JVM over LiteRT itself."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from edgekit import bundle, preprocess, resources, tools
from edgekit.embed import android, kotlin_compiler
from edgekit.preprocess import Preprocess
from edgekit.tensors import TensorSpec, dequantize, quantize
from tests.e2e.cli import edgekit
from tests.zoo import fetch

FAKES = Path(__file__).parents[1] / "embed_android"
STATED = "resize=256,crop=224,mean=0.498,std=0.502"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not any(tool.name == "kotlin" and tool.installed for tool in tools.status()), reason="needs 'edgekit tools install kotlin'"),
]


@pytest.fixture(scope="module")
def packaged(lite0: Path, lite0_samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """EfficientNet-Lite0, all integer, with the preprocessing of its images."""
    folder = tmp_path_factory.mktemp("packaged")
    precision = ("--precision", "w8a8", "--io", "int8", "--rounding", "bias")
    data = ("--calibration", lite0_samples, "--preprocess", STATED)
    done = edgekit("package", lite0, "--name", "efficientnet-lite0", "--target", "android-arm64", *precision, *data, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.edgekit"))


@pytest.fixture(scope="module")
def module(packaged: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("module")
    with bundle.open(packaged) as opened:
        assert android.write(opened, "com.example.net.Lite0", folder) == ()
    return folder


@pytest.fixture(scope="module")
def program(module: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the AAR's own classes and the module's golden test on a desktop."""
    folder = tmp_path_factory.mktemp("program")
    with zipfile.ZipFile(next(module.glob("*.aar"))) as archive:
        (folder / "classes.jar").write_bytes(archive.read("classes.jar"))
    golden = sorted((module / "src/androidTest/kotlin/com/example/net").glob("*.kt"))
    shared = resources.directory("apps") / "embed" / "android" / "ImageInput.kt"
    kotlin_compiler.compile_classes([*sorted(FAKES.glob("*.kt")), *golden, shared], folder / "fakes", [folder / "classes.jar"])
    command = kotlin_compiler.java([folder / "classes.jar", folder / "fakes", kotlin_compiler.standard_library()])
    return [*command, f"-Dmodule={module}", f"-Dpython={sys.executable}", "tests.MainKt"]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_golden_test_passes_with_the_bundle_s_model_and_fails_with_another(module: Path, program: list[str]) -> None:
    _run([*program, "golden"])
    expected = module / "src/androidTest/assets/edgekit/efficientnet_lite0/host-0.raw"
    right = expected.read_bytes()
    expected.write_bytes(np.roll(np.frombuffer(right, "<f4"), 1).tobytes())
    done = subprocess.run([*program, "golden"], capture_output=True, text=True, timeout=120, check=False)
    expected.write_bytes(right)
    assert done.returncode != 0
    assert "dB from the desktop's answer" in done.stderr


def test_an_image_gives_what_it_gives_on_the_desktop(packaged: Path, program: list[str], tmp_path: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter

    pixels = _natural()[0]
    _argb(pixels, tmp_path / "colors.raw")
    _run([*program, "bitmap", str(pixels.shape[1]), str(pixels.shape[0]), str(tmp_path / "colors.raw"), str(tmp_path / "out.raw")])
    with bundle.open(packaged) as opened:
        manifest = opened.manifest
        (spec,), (out,) = manifest.signature.inputs, manifest.signature.outputs
        interpreter = Interpreter(model_content=opened.read(manifest.artifact.main), num_threads=1)
    assert manifest.preprocess is not None
    interpreter.allocate_tensors()
    stored = quantize(preprocess.apply(pixels, manifest.preprocess, spec), spec)
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], stored)
    interpreter.invoke()
    expected = dequantize(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]), out)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "out.raw", "<f4"), expected.ravel())


IMAGES = (
    Preprocess(resize=(64, 48)),
    Preprocess(resize=(64, 48), interpolation="bicubic", order="BGR", layout="NCHW"),
    Preprocess(resize=(500, 700), interpolation="bicubic"),
    Preprocess(resize=(33, 47), interpolation="nearest"),
    Preprocess(resize=50, crop=(31, 44)),
    Preprocess(resize=(60, 60), keep_aspect=True, pad=114),
    Preprocess(resize=(41, 40), order="GRAY"),
)


def test_preprocessing_is_pillow_s_to_the_bit(program: list[str], tmp_path: Path) -> None:
    lines, expected = [], []
    for number, (stated, pixels) in enumerate((stated, pixels) for stated in IMAGES for pixels in _natural()):
        channels = stated.channels
        stated = Preprocess(**{f: getattr(stated, f) for f in stated.__struct_fields__} | _normalization(channels))
        crop = stated.crop if isinstance(stated.crop, tuple) else (0, 0)
        wide, high = stated.resize if isinstance(stated.resize, tuple) else (0, 0)
        width, height = crop if stated.crop else (wide, high)
        planar = stated.layout == "NCHW"
        spec = TensorSpec("x", (channels, height, width) if planar else (height, width, channels), "float64")
        expected.append(preprocess.apply(pixels, stated, spec))
        colors, out = tmp_path / f"{number}.argb", tmp_path / f"{number}.out"
        _argb(pixels, colors)
        shorter = stated.resize if isinstance(stated.resize, int) else 0
        fit = "fit" if stated.keep_aspect else "stretch"
        layout = stated.layout or "NHWC"
        how = (stated.order, fit, *crop, stated.interpolation.upper(), layout)
        fields = (width, height, shorter, wide, high, *how, *pixels.shape[1::-1], colors, out)
        lines.append(" ".join(str(field) for field in fields))
    (tmp_path / "images.txt").write_text("\n".join(lines))
    _run([*program, "images", str(tmp_path / "images.txt")])
    for number, values in enumerate(expected):
        np.testing.assert_array_equal(np.fromfile(tmp_path / f"{number}.out", "<f8"), values.ravel(), err_msg=lines[number])


def _normalization(channels: int) -> dict[str, tuple[float, ...]]:
    return {"mean": tuple(0.4 + 0.1 * c for c in range(channels)), "std": tuple(0.2 + 0.1 * c for c in range(channels))}


def _natural() -> list[NDArray[np.uint8]]:
    """Two natural images, one wide and one tall."""
    image = np.asarray(Image.open(fetch.path("images") / "chelsea.png").convert("RGB"))
    return [np.ascontiguousarray(image[:300, :420]), np.ascontiguousarray(image[:299, :250])]


def _argb(pixels: NDArray[np.uint8], path: Path) -> None:
    red, green, blue = (pixels[..., channel].astype(np.uint32) for channel in range(3))
    (np.uint32(0xFF000000) | red << 16 | green << 8 | blue).astype("<u4").tofile(path)
