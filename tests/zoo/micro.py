"""Nets of a microcontroller's size with seeded weights, given to edgekit as `tests.zoo.micro:person`, and their calibration data.

Batch statistics are those of the data, so that activations keep their size through the layers and outputs depend on the input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

PERSON_SIZE = 96
FRAMES, COEFFICIENTS, WORDS = 49, 10, 12


def person() -> Any:
    """MobileNet V1 at a quarter of its width on 96x96 gray pixels, as person detection on microcontrollers uses it: 18 convolutions."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(3)
    given = layers.Input((PERSON_SIZE, PERSON_SIZE, 1), name="image")
    x = _block(layers, layers.Conv2D(8, 3, 2, padding="same", use_bias=False)(given))
    for stride, channels in ((1, 16), (2, 32), (1, 32), (2, 64), (1, 64), (2, 128), (1, 128), (2, 256)):
        x = _block(layers, layers.DepthwiseConv2D(3, stride, padding="same", use_bias=False)(x))
        x = _block(layers, layers.Conv2D(channels, 1, use_bias=False)(x))
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(given, layers.Softmax(name="scores")(layers.Dense(2)(x)))
    _settle(keras, model, np.concatenate(person_data()))
    return model


def person_data() -> list[Any]:
    """Gray natural crops, real values from -1 to 1."""
    from tests.zoo import crops

    gray = crops.crops(24, seed=11, size=PERSON_SIZE, mean=0.5, std=0.5).mean(axis=1)
    return [sample[None, :, :, None].astype(np.float32) for sample in gray]


def mobilenet_data() -> list[Any]:
    """Natural crops in color for the zoo's MobileNetV2, real values from -1 to 1."""
    from tests.zoo import crops

    return [sample[None].transpose(0, 2, 3, 1) for sample in crops.crops(24, seed=12, size=PERSON_SIZE, mean=0.5, std=0.5)]


def keywords() -> Any:
    """A depthwise-separable net for 12 words on 49 frames of 10 cepstral coefficients, in PyTorch, and an example input."""
    import torch
    from torch import nn

    torch.manual_seed(4)
    layers: list[nn.Module] = [nn.Conv2d(1, 64, (10, 4), (2, 2), (5, 1), bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        layers += [nn.Conv2d(64, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, WORDS), nn.Softmax(dim=1))
    data = torch.from_numpy(_cepstra(24))
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # the average of all batches: of the one that follows
    with torch.no_grad():
        model.train()(data)
        model[-2].weight *= 8
    return model.eval(), (data[:1],)


def keywords_data() -> list[Any]:
    """Smooth random walks, as cepstral coefficients are."""
    return [sample[None] for sample in _cepstra(24)]


def _cepstra(count: int) -> Any:
    rng = np.random.default_rng(6)
    steps = rng.normal(0, 0.4, (count, 1, FRAMES, COEFFICIENTS)) / np.arange(1, COEFFICIENTS + 1) ** 0.5
    return np.cumsum(steps, axis=2).astype(np.float32)


def _block(layers: Any, x: Any) -> Any:
    return layers.ReLU(6.0)(layers.BatchNormalization(momentum=0.0)(x))


def _settle(keras: Any, model: Any, data: Any) -> None:
    model(data, training=True)
    dense = next(layer for layer in model.layers if isinstance(layer, keras.layers.Dense))
    kernel, bias = dense.get_weights()
    dense.set_weights([kernel * 4, bias])
