"""What generated code calls things, and what it says of them: words that every writer shares."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import numpy as np

from edgekit.budget import format_size
from edgekit.errors import UsageError
from edgekit.manifest import Manifest
from edgekit.preprocess import Preprocess, geometry
from edgekit.tensors import Signature, TensorSpec


def class_name(name: str) -> str:
    """`efficientnet-lite0` -> `EfficientnetLite0`."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    joined = "".join(word[0].upper() + word[1:] for word in words)
    return joined if joined and joined[0].isalpha() else f"Model{joined}"


def file_word(name: str) -> str:
    """A name for packages and files: `efficientnet-lite0` -> `efficientnet_lite0`."""
    word = "_".join(re.findall(r"[a-z0-9]+", name.lower())) or "model"
    return word if word[0].isalpha() else f"model_{word}"


def parameters(specs: Iterable[TensorSpec], keywords: Collection[str]) -> list[str]:
    """One identifier a tensor, in camel case: `serving_default_x:0` -> `servingDefaultX0`; distinct, and none of the language's keywords."""
    found: list[str] = []
    for spec in specs:
        word = class_name(spec.name)
        name = word[0].lower() + word[1:]
        base = f"{name}Value" if name in keywords else name
        taken = sum(re.fullmatch(rf"{re.escape(base)}_?\d*", other) is not None for other in found)
        found.append(f"{base}_{taken + 1}" if base in found else base)
    return found


def comment(value: str) -> str:
    """Text that cannot end the comment that holds it."""
    return " ".join(value.replace("*/", "* /").replace("/*", "/ *").split())


def shape(spec: TensorSpec) -> str:
    """`1x224x224x3`, `scalar` without dimensions."""
    return "x".join(str(size) for size in spec.shape) or "scalar"


def meaning(spec: TensorSpec) -> str:
    """What a caller must know of a tensor: name, shape, layout, and what its numbers are."""
    layout = f" ({spec.layout})" if spec.layout else ""
    kind = f"real values, stored as {spec.dtype}" if spec.scale is not None else "pixels" if spec.pixels else spec.dtype
    return comment(f"{spec.name}: {shape(spec)}{layout}, {kind}, row-major")


def summary(manifest: Manifest) -> str:
    """What the code is around."""
    return comment(f"{manifest.name} in {manifest.artifact.precision}, {format_size(manifest.artifact.bytes)}, from {manifest.source.name}.")


def image_fields(preprocess: Preprocess | None, signature: Signature) -> dict[str, object] | None:
    """The fields of `ImageInput` in apps/embed, in their order; None when no preprocessing is stored or the only input is no image.

    An interpolation is a string, the integers that values are rounded to a range, and None where they stay real.
    """
    if preprocess is None or len(signature.inputs) != 1:
        return None
    try:
        layout, height, width = geometry(signature.inputs[0].real, preprocess)
    except UsageError:
        return None
    size, crop = preprocess.resize, preprocess.crop
    wide, high = size if isinstance(size, tuple) else (0, 0)
    crop_wide, crop_high = crop if isinstance(crop, tuple) else (crop or 0, crop or 0)
    return {
        "width": width,
        "height": height,
        "channels": preprocess.channels,
        "shorter": size if isinstance(size, int) else 0,
        "resizeWidth": wide,
        "resizeHeight": high,
        "keepAspect": preprocess.keep_aspect,
        "pad": preprocess.pad,
        "cropWidth": crop_wide,
        "cropHeight": crop_high,
        "interpolation": preprocess.interpolation,
        "planar": layout == "NCHW",
        "reversed": preprocess.order == "BGR",
        "scale": float(preprocess.scale),
        "mean": [float(mean) for mean, _ in preprocess.normalization()],
        "std": [float(std) for _, std in preprocess.normalization()],
        "whole": _whole_numbers(preprocess),
    }


def _whole_numbers(preprocess: Preprocess) -> range | None:
    """The range into which values are rounded, where the preprocessing casts to integers before the model's own input type is met."""
    dtype = np.dtype(preprocess.dtype or "float32")
    if dtype.kind not in "iu":
        return None
    limits = np.iinfo(dtype)
    return range(limits.min, limits.max + 1)
