"""Signal to quantization noise, by numpy alone: a witness beside `edgekit.parity`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def sqnr_db(right: Any, got: Any) -> float:
    """Power of `right` over that of the error, in float64; far above 100 dB where nothing differs."""
    wanted, found = (np.asarray(values, np.float64) for values in (right, got))
    return float(10 * np.log10((wanted**2).sum() / max(((wanted - found) ** 2).sum(), 1e-30)))


def output_db(right: Sequence[Mapping[str, Any]], got: Sequence[Mapping[str, Any]], name: str) -> float:
    """The same of one output over all samples."""
    return sqnr_db(*(np.stack([row[name] for row in rows]) for rows in (right, got)))
