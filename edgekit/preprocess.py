"""How an image becomes a model input: plain data, stated once, stored in the manifest and generated into app code."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from edgekit import decimals
from edgekit.errors import UsageError, close_match, require
from edgekit.target import decode_toml
from edgekit.tensors import DTYPES, Array, TensorSpec

if TYPE_CHECKING:
    from PIL.Image import Image
else:
    Image = Any

Size = int | tuple[int, int]

INTERPOLATIONS = ("nearest", "bilinear", "bicubic")


class Preprocess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps in their order: convert to `order`, resize, crop the center, `(pixel * scale - mean) / std`, lay out as `layout`, cast to `dtype`.

    Pixels are 0..255. `resize` is (width, height), or the length that the shorter side gets, the longer one then follows. `keep_aspect` fits the
    image into (width, height) instead of stretching it, centered on a border of the pixel value `pad`. `crop` is (width, height) or a square.
    `mean` and `std` are in units of the scaled value, one for all channels or one each in `order`. Empty `layout` and `dtype` are the model's.
    Resizing is Pillow's, which widens the filter when it shrinks an image (anti-aliasing).
    """

    resize: Size | None = None
    crop: Size | None = None
    keep_aspect: bool = False
    pad: int = 0
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    layout: Literal["", "NCHW", "NHWC"] = ""
    order: Literal["RGB", "BGR", "GRAY"] = "RGB"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    dtype: str = ""

    @property
    def channels(self) -> int:
        """Number of color channels."""
        return 1 if self.order == "GRAY" else 3

    @property
    def value_range(self) -> tuple[float, float]:
        """The least and the largest value that a pixel can become."""
        ends = [(pixel * self.scale - mean) / std for pixel in (0, 255) for mean, std in self.normalization()]
        return min(ends), max(ends)

    def normalization(self) -> list[tuple[float, float]]:
        """Mean and standard deviation of each channel."""
        means, stds = (values * self.channels if len(values) == 1 else values for values in (self.mean, self.std))
        return list(zip(means, stds, strict=True))


def parse(text: str) -> Preprocess:
    """Read `resize=256,crop=224,mean=0.485:0.456:0.406,...`, or the TOML file that `text` names. Raises `UsageError`.

    Sizes are `224` or `WIDTHxHEIGHT`, lists are joined by `:`, `scale` may be a fraction (`1/255`).
    """
    if text.endswith(".toml"):
        return read(Path(text))
    values: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not value:
            raise UsageError(f"--preprocess: {item!r} is not KEY=VALUE", "for instance resize=256,crop=224,scale=1/255")
        if key not in _PARSERS:
            raise UsageError(f"--preprocess: unknown key {key!r}", close_match(key, _PARSERS))
        if key in values:
            raise UsageError(f"--preprocess: {key} is stated twice", "state it once")
        values[key] = _parse_value(key, value)
    return _checked(values, "--preprocess")


def read(path: Path) -> Preprocess:
    """Read a TOML file with the same keys. Raises `UsageError`."""
    if not path.is_file():
        raise UsageError(f"{path}: no such preprocessing file", "give a TOML file, or KEY=VALUE,KEY=VALUE")
    return _checked(msgspec.structs.asdict(decode_toml(path, Preprocess)), path.name)


def apply(image: Image | Array, preprocess: Preprocess, spec: TensorSpec) -> Array:
    """The input of shape `spec.shape` ([1, C, H, W], [1, H, W, C], or without the leading 1) that an image becomes.

    `image` is a Pillow image or uint8 pixels [H, W, 3]. The values are real ones: float32, also for a quantized input, which its scale maps
    later; an integer input without a scale takes rounded and clipped pixels. Raises `UsageError` when the result would not fit.
    """
    import numpy as np

    layout, height, width = geometry(spec, preprocess)
    picture = _place(_as_image(image, preprocess.order), preprocess)
    if picture.size != (width, height):
        stated = "resize and crop give" if preprocess.resize or preprocess.crop else "the image has"
        message = f"{spec.name} takes {width}x{height} pixels, {stated} {picture.size[0]}x{picture.size[1]}"
        raise UsageError(message, f"state resize={width}x{height}, or resize and crop={width}x{height}")
    pixels = np.asarray(picture, np.float64).reshape(height, width, preprocess.channels)
    if preprocess.order == "BGR":
        pixels = pixels[:, :, ::-1]
    mean, std = np.array(preprocess.normalization()).T
    values = (pixels * preprocess.scale - mean) / std
    laid_out = values.transpose(2, 0, 1) if layout == "NCHW" else values
    return _cast(np.ascontiguousarray(laid_out).reshape(spec.shape), preprocess, spec)


def geometry(spec: TensorSpec, preprocess: Preprocess) -> tuple[str, int, int]:
    """Layout, height and width of an image input. Raises `UsageError` when the input is no image or the layout is open.

    The layout is the stated one, else the model's, else the only one in which the channels fit; it is never guessed.
    """
    shape = spec.shape[1:] if len(spec.shape) == 4 and spec.shape[0] == 1 else spec.shape
    text = f"{spec.name} {list(spec.shape)}"
    if len(shape) != 3 or min(shape) < 1:
        raise UsageError(f"{text} is no image input", "give .npy or .npz samples, or package.module:function")
    fits = {"NCHW": shape[0] == preprocess.channels, "NHWC": shape[2] == preprocess.channels}
    layout = preprocess.layout or spec.layout
    if not layout and all(fits.values()):
        raise UsageError(f"{text}: the layout is open", "state layout=NCHW or layout=NHWC")
    layout = layout or next((name for name, fit in fits.items() if fit), "")
    if not fits.get(layout, False):
        as_stated = f" as {layout}" if layout else ""
        raise UsageError(f"{text} does not hold {preprocess.channels} channels ({preprocess.order}){as_stated}", "state order or layout")
    return (layout, shape[1], shape[2]) if layout == "NCHW" else (layout, shape[0], shape[1])


def _as_image(image: Image | Array, order: str) -> Image:
    pillow = require("PIL.Image", extra="images", purpose="preprocessing images")
    picture = image if isinstance(image, pillow.Image) else pillow.fromarray(image)
    if picture.mode.startswith(("I", "F")):
        raise UsageError(f"an image of mode {picture.mode} has more than 8 bits a channel", "convert it to 8 bits, or give .npy samples")
    return picture.convert("L" if order == "GRAY" else "RGB")


def _place(picture: Image, preprocess: Preprocess) -> Image:
    if preprocess.resize is not None:
        picture = _resize(picture, preprocess)
    return picture if preprocess.crop is None else _crop(picture, _pair(preprocess.crop))


def _resize(picture: Image, preprocess: Preprocess) -> Image:
    pillow = require("PIL.Image", extra="images", purpose="preprocessing images")
    method = pillow.Resampling[preprocess.interpolation.upper()]
    width, height = picture.size
    if isinstance(preprocess.resize, int):
        short = preprocess.resize
        size = (short, short * height // width) if width <= height else (short * width // height, short)
        return picture.resize(size, method)
    assert preprocess.resize is not None
    if not preprocess.keep_aspect:
        return picture.resize(preprocess.resize, method)
    wide, high = preprocess.resize
    factor = min(wide / width, high / height)
    inner = max(1, min(wide, round(width * factor))), max(1, min(high, round(height * factor)))
    canvas = pillow.new(picture.mode, (wide, high), preprocess.pad if picture.mode == "L" else (preprocess.pad,) * 3)
    canvas.paste(picture.resize(inner, method), ((wide - inner[0]) // 2, (high - inner[1]) // 2))
    return canvas


def _crop(picture: Image, size: tuple[int, int]) -> Image:
    width, height = size
    if width > picture.size[0] or height > picture.size[1]:
        raise UsageError(f"cannot crop {width}x{height} from an image of {picture.size[0]}x{picture.size[1]} pixels", "state a larger resize")
    left, top = round((picture.size[0] - width) / 2), round((picture.size[1] - height) / 2)
    return picture.crop((left, top, left + width, top + height))


def _cast(values: Array, preprocess: Preprocess, spec: TensorSpec) -> Array:
    import numpy as np

    dtype = np.dtype(preprocess.dtype or ("float32" if spec.scale is not None else spec.dtype))
    if dtype.kind not in "iu":
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.rint(values), limits.min, limits.max).astype(dtype)


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _parse_value(key: str, text: str) -> Any:
    try:
        return _PARSERS[key](text)
    except (ValueError, KeyError, ZeroDivisionError):
        raise UsageError(f"--preprocess: {key}={text} cannot be read", _EXAMPLES.get(key)) from None


def _parse_size(text: str) -> Size:
    width, times, height = text.lower().partition("x")
    return (decimals.whole(width), decimals.whole(height)) if times else decimals.whole(text)


def _parse_number(text: str) -> float:
    above, slash, below = text.partition("/")
    return decimals.number(above) / decimals.number(below) if slash else decimals.number(text)


def _parse_numbers(text: str) -> tuple[float, ...]:
    return tuple(_parse_number(part) for part in text.split(":"))


def _parse_flag(text: str) -> bool:
    return {"true": True, "yes": True, "false": False, "no": False}[text.lower()]


_PARSERS: dict[str, Callable[[str], Any]] = {
    "resize": _parse_size,
    "crop": _parse_size,
    "keep_aspect": _parse_flag,
    "pad": decimals.whole,
    "interpolation": str.lower,
    "layout": str.upper,
    "order": str.upper,
    "scale": _parse_number,
    "mean": _parse_numbers,
    "std": _parse_numbers,
    "dtype": str.lower,
}
_EXAMPLES = {"resize": "resize=256 or resize=320x240", "crop": "crop=224", "mean": "mean=0.485:0.456:0.406", "scale": "scale=1/255"}


def _checked(values: dict[str, Any], origin: str) -> Preprocess:
    try:
        found = msgspec.convert(values, Preprocess)
    except msgspec.ValidationError as error:
        raise UsageError(f"{origin}: {error}", f"interpolation: {', '.join(INTERPOLATIONS)}; layout: NCHW, NHWC; order: RGB, BGR, GRAY") from error
    if problem := contradiction(found):
        raise UsageError(f"{origin}: {problem}", _EXAMPLES.get(problem.split()[0]))
    return found


def contradiction(found: Preprocess) -> str:
    """What a preprocessing states that cannot be, in words; empty where all can."""
    sides = [side for size in (found.resize, found.crop) if size is not None for side in _pair(size)]
    problems = {
        "a size must be from 1 to 16384": any(not 1 <= side <= 16384 for side in sides),
        f"mean has {len(found.mean)} values, {found.order} has {found.channels} channels": len(found.mean) not in (1, found.channels),
        f"std has {len(found.std)} values, {found.order} has {found.channels} channels": len(found.std) not in (1, found.channels),
        "std must not be zero": 0 in found.std,
        "scale, mean and std must be finite": not all(map(math.isfinite, (found.scale, *found.mean, *found.std))),
        "pad must be from 0 to 255": not 0 <= found.pad <= 255,
        "keep_aspect needs resize=WIDTHxHEIGHT": found.keep_aspect and not isinstance(found.resize, tuple),
        f"unknown dtype {found.dtype!r}": found.dtype not in ("", *DTYPES),
    }
    return next((problem for problem, holds in problems.items() if holds), "")
