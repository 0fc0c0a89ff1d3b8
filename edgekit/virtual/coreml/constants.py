"""Constants decoded to what the kernels take: tensors, text, lists.

Half-precision values are held in float32 on the half grid; unsigned integers beyond 8 bits in a wider type that torch computes with.
"""

from __future__ import annotations

import math
from typing import Any

from edgekit.errors import BundleError
from edgekit.virtual.coreml import packed, spec
from edgekit.virtual.coreml.package import Package, blob

IMMEDIATE_LIMIT = 1 << 24

FIELDS = {"floats": "float32", "doubles": "float64", "ints": "int64", "longs": "int64", "bools": "bool"}


def decode(constant: spec.Constant, package: Package) -> Any:
    """The constant's value. Raises `BundleError` when its bytes do not fit its type."""
    if constant.kind in ("tuple", "list"):
        return tuple(decode(item, package) for item in constant.payload)
    if constant.kind == "blob":
        file, offset = constant.payload
        return held(blob(package, file, offset, constant.type))
    if constant.type.dtype == "string":
        texts = constant.payload.get("strings", {}).get("values", [])
        return texts[0] if texts and not constant.type.shape else tuple(texts)
    return held(_immediate(constant))


def _immediate(constant: spec.Constant) -> Any:
    import numpy as np

    kind, payload = constant.type, constant.payload
    elements = math.prod(kind.shape)
    if not 0 <= elements <= IMMEDIATE_LIMIT:
        raise BundleError(f"a literal of shape {list(kind.shape)} in the specification")
    if "bytes" in payload:
        return packed.unpack(payload["bytes"].get("values", b""), kind.dtype, kind.shape)
    values: list[Any] = next((payload[name].get("values", []) for name in FIELDS if name in payload), [])
    if len(values) != elements:
        raise BundleError(f"a literal {kind.dtype}{list(kind.shape)} holds {len(values)} values")
    return np.array(values, np.dtype(kind.dtype) if kind.dtype in packed.WHOLE else np.int64).reshape(kind.shape)


def held(array: Any) -> Any:
    """A stored array as the tensor that kernels compute with."""
    import numpy as np
    import torch

    wider = {"float16": np.float32, "float64": np.float32, "uint16": np.int32, "uint32": np.int64, "uint64": np.int64}.get(array.dtype.name)
    array = array.astype(wider) if wider else array
    return torch.from_numpy(np.array(array, order="C"))


def rounded(value: Any, dtype: str) -> Any:
    """A tensor as `dtype` stores it; half precision stays in float32, on the half grid."""
    import torch

    if dtype == "float16":
        return value.half().float()
    kind = {
        "float32": torch.float32,
        "float64": torch.float32,
        "bool": torch.bool,
        "int8": torch.int8,
        "uint8": torch.uint8,
        "int16": torch.int16,
        "uint16": torch.int32,
        "int32": torch.int32,
    }.get(dtype, torch.int64)
    return value if value.dtype == kind else value.to(kind)
