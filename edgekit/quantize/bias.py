"""Biases that take back the mean error of rounded weights."""

from __future__ import annotations

from edgekit.quantize.moments import Layer
from edgekit.tensors import Array


def corrected(layer: Layer, rounded: Array, mean: Array, seen: Array) -> Array:
    """The bias plus E[W x] - E[Wq xq], float64 [outputs]: Nagel et al. 2019, «Data-Free Quantization Through Weight Equalization and Bias
    Correction», with measured means; sequential when `seen` is measured behind layers that are rounded already.

    `rounded` is [outputs, k]; `mean` of the float model's inputs and `seen` of the quantized model's are [groups, k].
    """
    wanted, given = output_mean(layer.grouped, mean), output_mean(rounded.reshape(layer.grouped.shape), seen)
    found: Array = layer.bias.astype("float64") + wanted - given
    return found


def output_mean(weight: Array, mean: Array) -> Array:
    """E[W x] without the bias, float64 [outputs]; `weight` is [groups, outputs / groups, k], `mean` [groups, k]."""
    import numpy as np

    found: Array = np.matmul(weight.astype(np.float64), mean[:, :, None]).reshape(-1)
    return found
