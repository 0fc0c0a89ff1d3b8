"""Packaging time and memory beside the plain toolchain doing the same by hand, on EfficientNet-Lite0.

Without arguments it prints all rows; `plain-fp32 OUT CALIBRATION` is one plain run, which the rows start.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import measure

MODEL = "tests.zoo.models:efficientnet_lite0"
SAMPLES = 64


def main() -> None:
    """Print one line a comparison."""
    from tests.zoo import crops

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "crops.npz")
        np.savez(data, input=crops.crops(SAMPLES, seed=1)[:, None])
        ours = [sys.executable, "-m", "edgekit", "package", MODEL, "--target", "android-arm64", "--out", folder, "--calibration", str(data)]
        plain = [sys.executable, __file__]
        rows = (("fp32", ["fp32"], 1.10), ("w8a8", ["w8a8", "--rounding", "nearest"], 1.10))
        for name, arguments, limit in rows:
            measure.side_by_side(
                f"one precision, {' '.join(arguments)}",
                [*plain, f"plain-{name}", f"{folder}/plain.tflite", str(data)],
                [*ours, "--rebuild", "--precision", *arguments],
                limit=limit,
            )
        measure.side_by_side(
            "better rounding, w8a8",
            [*plain, "plain-w8a8", f"{folder}/plain.tflite", str(data)],
            [*ours, "--rebuild", "--precision", "w8a8"],
            rounds=1,
            limit=2.5,
        )
        repeat = measure.run([*ours, "--precision", "w8a8"])
        print(f"repeat with nothing changed: {repeat.seconds:.2f} s (aim: under 1 s)")


def plain(kind: str, out: Path, data: Path) -> None:
    """What an engineer does by hand: convert, and for w8a8 calibrate and quantize with the quantizer's defaults."""
    import litert_torch

    from tests.zoo import models

    model, example = models.efficientnet_lite0()
    litert_torch.convert(model, example).export(str(out))
    if kind == "plain-w8a8":
        from ai_edge_quantizer import quantizer, recipe

        samples = np.load(data)["input"]
        quantize = quantizer.Quantizer(str(out), recipe.static_wi8_ai8())
        signature = quantize_signature(out)
        calibrated = quantize.calibrate({signature[0]: [{signature[1]: sample} for sample in samples]})
        quantize.quantize(calibrated).export_model(str(out), overwrite=True)


def quantize_signature(path: Path) -> tuple[str, str]:
    """The first signature and its input's name."""
    from ai_edge_litert.interpreter import Interpreter

    name, ends = next(iter(Interpreter(str(path)).get_signature_list().items()))
    return name, ends["inputs"][0]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        plain(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
