"""Image inputs: the signature of an artifact that takes pixels where the model takes the values that its preprocessing makes of them."""

from __future__ import annotations

from collections.abc import Sequence

from edgekit.errors import UsageError
from edgekit.preprocess import Preprocess, geometry
from edgekit.tensors import Arrays, Pixels, Signature, TensorSpec, dequantize, quantize

TOLERANCE = 0.01
"""Of a pixel's step: single precision moves the values of whole ones by less."""


def edge(signature: Signature, preprocess: Preprocess | None) -> Signature:
    """The signature with the only input as an image. Raises `UsageError` when the preprocessing is not stated, or the input is no image."""
    if preprocess is None:
        raise UsageError("--io image: what becomes of a pixel is not stated", "give --preprocess, for instance scale=1/255,mean=0.5,std=0.5")
    if len(signature.inputs) != 1:
        names = ", ".join(spec.name for spec in signature.inputs)
        raise UsageError(f"--io image: the model has {len(signature.inputs)} inputs ({names}), and the preprocessing is for one", "leave out --io")
    return Signature((_image(signature.inputs[0], preprocess),), signature.outputs)


def _image(spec: TensorSpec, preprocess: Preprocess) -> TensorSpec:
    layout, height, width = geometry(spec, preprocess)
    if len(spec.shape) != 4 or spec.dtype not in ("float32", "float16") or preprocess.dtype not in ("", "float32"):
        raise UsageError(
            f"--io image: {spec.name} is {preprocess.dtype or spec.dtype}{list(spec.shape)}, not float32 with a leading axis of 1", "leave out --io"
        )
    pairs = preprocess.normalization()
    if any(std == 0 for _, std in pairs) or not preprocess.scale:
        raise UsageError("--io image: a scale or std of 0 leaves nothing of a pixel", "for instance scale=1/255,mean=0.5,std=0.5")
    scale, offset = tuple(preprocess.scale / std for _, std in pairs), tuple(-mean / std for mean, std in pairs)
    pixels = Pixels(layout, scale, offset, preprocess.order == "BGR")
    return TensorSpec(spec.name, (1, height, width, preprocess.channels), "uint8", layout="NHWC", pixels=pixels)


def strangers(samples: Sequence[Arrays], signature: Signature) -> int:
    """How many samples are no 8-bit pixels behind the preprocessing: the artifact can only take the nearest ones."""
    return sum(any(_off(sample, spec) for spec in signature.inputs if spec.pixels) for sample in samples)


def _off(sample: Arrays, spec: TensorSpec) -> bool:
    assert spec.pixels is not None
    crossed = dequantize(quantize(sample[spec.name], spec), spec)
    return bool(abs(crossed - sample[spec.name]).max() > TOLERANCE * min(map(abs, spec.pixels.scale)))
