"""Moving scale between layers, so that the channels of an activation that has one scale for all reach equally far."""

from __future__ import annotations

from collections.abc import Sequence

from edgekit.quantize.grid import TINY
from edgekit.tensors import Array

LIMIT = 1024.0
"""Factors stay within [1 / LIMIT, LIMIT] of their geometric mean: a dead channel has no range to equalize."""


def factors(activation: Array, weight: Array, balance: float = 0.5) -> Array:
    """Positive factors, float64 [channels], that an activation's channels are divided by and the next layers' input weights multiplied by.

    `activation` [channels] is how far each channel reaches (largest magnitude), `weight` [channels] the largest weight that reads it.
    With `balance` 0.5 both sides get the geometric mean of the two ranges (Nagel et al. 2019, «Data-Free Quantization Through Weight
    Equalization and Bias Correction», with measured activations in place of the first layer's weights); toward 1 the activation gets
    flatter at the weights' expense (Xiao et al. 2022, «SmoothQuant»). Layers between must be positively homogeneous: none or ReLU.
    """
    import numpy as np

    alive = (activation > TINY) & (weight > TINY)
    if not alive.any():
        return np.ones(len(activation))
    reach, read = activation.astype(np.float64), weight.astype(np.float64)
    logs = np.where(alive, balance * np.log(np.maximum(reach, TINY)) - (1 - balance) * np.log(np.maximum(read, TINY)), 0.0)
    logs -= logs[alive].mean()
    bounded = np.clip(logs, -np.log(LIMIT), np.log(LIMIT))
    return np.where(alive, np.exp(bounded), 1.0)


def joint(reaches: Sequence[Array]) -> Array:
    """How far each channel reaches in the worst of several activations [channels] that share factors, each relative to its own widest channel."""
    import numpy as np

    found: Array = np.max([reach / max(float(reach.max()), TINY) for reach in reaches], axis=0)
    return found


def imbalance(reach: Array) -> float:
    """How much further the widest channel reaches than the typical one: largest / median magnitude of the channels that are not dead."""
    import numpy as np

    alive = reach[reach > TINY]
    return float(alive.max() / np.median(alive)) if alive.size else 1.0
