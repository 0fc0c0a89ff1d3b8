"""The zoo as a table: how each model is given to edgekit, and natural samples for it. Every target's zoo test reads this one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.zoo import crops, fetch

Samples = Callable[[int, int], dict[str, NDArray[np.generic]]]
"""`samples(count, seed)`: input name -> array with a leading axis of samples."""


LITERT_FLOAT = (
    "efficientnet-lite0",
    "mobilenet-v2",
    "basic-pitch-tflite",
    "face-detection-short-range",
    "selfie-segmentation",
    "palm-detection-lite",
    "pose-detection",
    "ppocr-cls",
    "ppocr-det",
    "silero-vad",
    "magika",
)
"""Float models that the LiteRT family takes, one format each."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A zoo model: what is typed as MODEL, `--input` shapes, and its samples."""

    reference: str
    samples: Samples
    inputs: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)


def image(name: str, size: tuple[int, int], *, mean: float, std: float, layout: str, names: tuple[str, ...] = crops.IMAGES) -> Samples:
    """Natural crops of height x width, (x/255 - mean) / std."""

    def make(count: int, seed: int) -> dict[str, NDArray[np.generic]]:
        square = crops.crops(count, seed=seed, size=max(size), mean=mean, std=std, names=names)[:, :, : size[0], : size[1]]
        return {name: np.ascontiguousarray(square if layout == "NCHW" else square.transpose(0, 2, 3, 1))[:, None]}

    return make


def audio(name: str, shape: tuple[int, ...]) -> Samples:
    """Chords of decaying harmonics with a little noise, at most 1 in magnitude."""

    def make(count: int, seed: int) -> dict[str, NDArray[np.generic]]:
        rng = np.random.RandomState(seed)
        time = np.arange(int(np.prod(shape))) / 22050
        rows = []
        for _ in range(count):
            notes = 110 * 2 ** (rng.randint(0, 36, 3) / 12)
            wave = sum(np.sin(2 * np.pi * f * k * time) / k for f in notes for k in (1, 2, 3)) * np.exp(-time * rng.uniform(0.5, 3))
            rows.append((wave / np.abs(wave).max() * 0.8 + 0.01 * rng.randn(time.size)).reshape(shape))
        return {name: np.stack(rows).astype(np.float32)}

    return make


def speech_frames(count: int, seed: int) -> dict[str, NDArray[np.generic]]:
    """Frames for the voice detector, and states of the size that it keeps."""
    rng = np.random.RandomState(seed)
    frames = audio("input", (1, 576))(count, seed)["input"]
    return {"input": frames, "state": (0.1 * rng.randn(count, 2, 1, 128)).astype(np.float32)}


def source_text(count: int, seed: int) -> dict[str, NDArray[np.generic]]:
    """Bytes of Python files of this project, as the file-type model takes them: the first and the last 1024, padded with 256."""
    files = sorted(Path(__file__).resolve().parents[2].glob("edgekit/*.py"))
    rng = np.random.RandomState(seed)
    rows = []
    for index in rng.randint(0, len(files), count):
        data = files[index].read_bytes()[: rng.randint(200, 4000)]
        ends = [list(part) + [256] * (1024 - len(part)) for part in (data[:1024], data[-1024:])]
        rows.append([ends[0] + ends[1]])
    return {"bytes": np.asarray(rows, np.int32)}


def _file(name: str) -> str:
    return str(fetch.path(name))


def rows() -> dict[str, Row]:
    """Every zoo model by name."""
    lite0 = image("inputs", (224, 224), mean=0.498, std=0.502, layout="NCHW")
    mobilenet = image("input_layer", (96, 96), mean=0.5, std=0.5, layout="NHWC")
    return {
        "efficientnet-lite0": Row("tests.zoo.models:efficientnet_lite0", lite0),
        "mobilenet-v2": Row("tests.zoo.models:mobilenet_v2", mobilenet),
        "basic-pitch-savedmodel": Row(_file("basic-pitch-savedmodel"), audio("input_2", (1, 43844, 1))),
        "basic-pitch-onnx": Row(
            _file("basic-pitch-onnx"), audio("serving_default_input_2:0", (1, 43844, 1)), {"serving_default_input_2:0": (1, 43844, 1)}
        ),
        "basic-pitch-tflite": Row(_file("basic-pitch-tflite"), audio("input_2", (1, 43844, 1))),
        "face-detection-short-range": Row(_file("face-detection-short-range"), image("input", (128, 128), mean=0.5, std=0.5, layout="NHWC")),
        "selfie-segmentation": Row(_file("selfie-segmentation"), image("input_1", (256, 256), mean=0.0, std=1.0, layout="NHWC")),
        "palm-detection-lite": Row(_file("palm-detection-lite"), image("input_1", (192, 192), mean=0.0, std=1.0, layout="NHWC")),
        "pose-detection": Row(_file("pose-detection"), image("input_1", (224, 224), mean=0.5, std=0.5, layout="NHWC")),
        "ppocr-cls": Row(_file("ppocr-cls"), image("x", (48, 192), mean=0.5, std=0.5, layout="NCHW", names=crops.TEXT), {"x": (1, 3, 48, 192)}),
        "ppocr-det": Row(_file("ppocr-det"), image("x", (320, 320), mean=0.456, std=0.225, layout="NCHW", names=crops.TEXT), {"x": (1, 3, 320, 320)}),
        "silero-vad": Row(_file("silero-vad"), speech_frames, {"input": (1, 576), "state": (2, 1, 128)}),
        "magika": Row(_file("magika"), source_text, {"bytes": (1, 2048)}),
    }
