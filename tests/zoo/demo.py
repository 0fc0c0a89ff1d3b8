"""The main job on a trained model, as a user would type it: package within a budget, then prove the bundle on a virtual Android device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.zoo import crops, fetch

OUT = Path("out")


def main() -> None:
    """Run both commands; the exit code is that of the first that fails."""
    fetch.ensure()
    OUT.mkdir(exist_ok=True)
    data = OUT / "crops.npz"
    np.savez(data, inputs=crops.crops(64, seed=1)[:, None])
    package = ["package", "tests.zoo.models:efficientnet_lite0", "--target", "android-arm64", "--max-size", "12MB", "--calibration", str(data)]
    run([*package, "--out", str(OUT)])
    run(
        [
            "test",
            str(OUT / "efficientnet_lite0-android-arm64.edgekit"),
            "--device",
            "virtual:android-arm64",
            "--runs",
            "2",
            "--html",
            str(OUT / "report.html"),
        ]
    )


def run(arguments: list[str]) -> None:
    """Show and run one edgekit command."""
    print("$ edgekit", " ".join(arguments), flush=True)
    code = subprocess.run([sys.executable, "-m", "edgekit", *arguments], check=False).returncode
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
