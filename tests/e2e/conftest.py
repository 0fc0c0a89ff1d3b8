"""What is made once for the whole session: a trained network as a float `.tflite`, and natural samples for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

LITE0 = "tests.zoo.models:efficientnet_lite0"


@pytest.fixture(scope="session")
def lite0(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """EfficientNet-Lite0 as a float `.tflite`."""
    from edgekit import converters, formats

    folder = tmp_path_factory.mktemp("lite0")
    (converter,) = converters.route("torch", ("tflite",))
    path = converter.convert(formats.open(LITE0), folder).path
    return Path(path)


@pytest.fixture(scope="session")
def lite0_samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Natural crops for it."""
    from tests.zoo import table

    path = tmp_path_factory.mktemp("crops") / "crops.npz"
    np.savez(path, **table.rows()["efficientnet-lite0"].samples(16, 1))
    return path
