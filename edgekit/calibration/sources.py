"""Where samples come from: one reader for each kind of source, each yielding (name, arrays by input name)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edgekit import plugins
from edgekit import preprocess as images
from edgekit.calibration import fitting
from edgekit.errors import UsageError, require
from edgekit.preprocess import Preprocess
from edgekit.tensors import Array, Signature, TensorSpec

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
ARRAYS = (".npy", ".npz")
_ORIENTATION = 0x0112
"""EXIF tag 274 (Exif 2.32, 4.6.4): 1 is upright."""

MOST_PIXELS = 2**26
MOST_BYTES = 2**31
TAKES = "give a folder of images or of .npy/.npz files, one .npz, or package.module:function"


@dataclasses.dataclass(frozen=True)
class Found:
    """Samples, read one at a time as they are asked for; the preprocessing that their values are to obey; what was odd."""

    samples: Iterable[tuple[str, Mapping[str, Array]]]
    preprocess: Preprocess | None
    notices: tuple[str, ...] = ()


def open(reference: str, signature: Signature, preprocess: Preprocess | None, limit: int) -> Found:
    """Recognize the source. Raises `UsageError` when it is none; its samples may raise it later, naming the file."""
    path = Path(reference)
    if path.is_dir():
        return _folder(path, signature, preprocess, limit)
    if path.is_file():
        if path.suffix.lower() not in ARRAYS:
            raise UsageError(f"{reference}: a {path.suffix or 'nameless'} file holds no samples", TAKES)
        return Found(_array_file(path, path.name, signature, limit), preprocess)
    if ":" in reference and path.suffix.lower() not in ARRAYS:
        return Found(_function(reference, signature), preprocess)
    raise UsageError(f"{reference}: no such calibration data", TAKES)


def _folder(folder: Path, signature: Signature, preprocess: Preprocess | None, limit: int) -> Found:
    files = {p: p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}
    names = {p: name.as_posix() for p, name in files.items() if not any(part.startswith(".") for part in name.parts)}
    for name in names.values():
        if not name.isascii() and any("\ud800" <= character <= "\udfff" for character in name):
            raise UsageError(f"{folder}: the file name {os.fsencode(name)!r} is not UTF-8", "rename it: a bundle names its samples")
    visible = sorted(names, key=names.__getitem__)
    pictures, arrays = ([p for p in visible if p.suffix.lower() in suffixes] for suffixes in (IMAGES, ARRAYS))
    if pictures and arrays:
        raise UsageError(f"{folder}: both images ({pictures[0].name}) and arrays ({arrays[0].name})", "keep one kind in the folder")
    used = pictures or arrays
    if not used:
        raise UsageError(f"{folder}: no images and no .npy or .npz files among its {len(files)} files", TAKES)
    notices = [] if len(used) == len(visible) else [f"{len(visible) - len(used)} other files in {folder.name} were left out"]
    if len(used) > limit:
        notices.append(f"{limit} of {len(used)} files were taken, evenly spaced")
    taken = fitting.spaced(used, limit)
    if arrays:
        return Found((sample for p in taken for sample in _array_file(p, names[p], signature, limit)), preprocess, tuple(notices))
    stated = preprocess or _default(signature)
    if preprocess is None:
        notices.append(f"no --preprocess: images are stretched to {stated.resize} pixels (width, height) and scaled to 0..1, in RGB")
    notices += _oddities({p: names[p] for p in taken})
    return Found(((names[p], _image(p, names[p], signature, stated)) for p in taken), stated, tuple(notices))


def _oddities(pictures: Mapping[Path, str]) -> list[str]:
    """What is done to some images beyond the stated preprocessing, told from their headers; one that cannot be read is left to its reader."""
    pillow = require("PIL.Image", extra="images", purpose="reading images")
    turned, clear = [], []
    for path, name in pictures.items():
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pillow.open(path) as picture:
                turned += [name] if picture.getexif().get(_ORIENTATION, 1) != 1 else []
                clear += [name] if picture.has_transparency_data else []
    return [
        f"{len(some)} images {what} ({some[0]}{', ...' if len(some) > 1 else ''})"
        for some, what in (
            (turned, "are turned upright, as their EXIF orientation says"),
            (clear, "have transparency, which is dropped: what is stored below it counts"),
        )
        if some
    ]


def _default(signature: Signature) -> Preprocess:
    spec = _only_input(signature)
    gray = 1 in (spec.shape[-1], spec.shape[-3] if len(spec.shape) > 2 else 0)
    order = Preprocess(order="GRAY") if gray else Preprocess()
    _, height, width = images.geometry(spec, order)
    return Preprocess(resize=(width, height), order=order.order, scale=1.0 if spec.dtype == "uint8" and spec.scale is None else 1 / 255)


def _only_input(signature: Signature) -> TensorSpec:
    if len(signature.inputs) != 1:
        names = ", ".join(spec.name for spec in signature.inputs)
        raise UsageError(f"images feed one input, the model has {len(signature.inputs)}: {names}", "give .npz files with one key an input")
    return signature.inputs[0]


def _image(path: Path, name: str, signature: Signature, preprocess: Preprocess) -> dict[str, Array]:
    pillow = require("PIL.Image", extra="images", purpose="reading images")
    spec = _only_input(signature)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # the size is checked below
            picture = pillow.open(path)
        with picture:
            if picture.size[0] * picture.size[1] > MOST_PIXELS:
                raise UsageError(f"{name}: an image of {picture.size[0]}x{picture.size[1]} pixels", f"at most {MOST_PIXELS} pixels are read")
            return {spec.name: images.apply(_upright(picture), preprocess, spec)}
    except UsageError as error:
        raise UsageError(error.message if error.message.startswith(name) else f"{name}: {error.message}", error.hint) from error
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:  # what Pillow's decoders raise on bad data
        raise UsageError(f"{name}: not a readable image: {error}", "leave it out, or save it again") from error


def _upright(picture: Any) -> Any:
    """As a viewer shows it: cameras store how they were held instead of turning the pixels."""
    if picture.getexif().get(_ORIENTATION, 1) == 1:
        return picture
    return require("PIL.ImageOps", extra="images", purpose="reading images").exif_transpose(picture)


def _array_file(path: Path, name: str, signature: Signature, limit: int) -> Iterator[tuple[str, Mapping[str, Array]]]:
    for number, sample in enumerate(samples := fitting.unstack(name, _read_arrays(path, name), signature, limit)):
        yield (name if len(samples) == 1 else f"{name}[{number}]"), sample


def _read_arrays(path: Path, name: str) -> dict[str, Array]:
    import numpy as np

    try:
        if path.suffix.lower() == ".npy":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            _bound(name, array.nbytes)
            return {"": np.array(array)}
        with zipfile.ZipFile(path) as archive:
            _bound(name, sum(entry.file_size for entry in archive.infolist()))
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise UsageError(f"{name}: not a readable {path.suffix} file: {error}", "arrays of numbers are read, pickled objects never are") from error


def _bound(name: str, size_bytes: int) -> None:
    if size_bytes > MOST_BYTES:
        raise UsageError(f"{name}: {size_bytes} bytes of arrays", f"at most {MOST_BYTES} are read from one file; split it into a folder of files")


def _function(reference: str, signature: Signature) -> Iterator[tuple[str, Mapping[str, Array]]]:
    function = plugins.function(reference)
    try:
        for number, item in enumerate(_talking(function)):
            yield f"{reference}[{number}]", _named(item, f"{reference}[{number}]", signature)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # the user's own code may raise anything
        raise UsageError(f"{reference}: the function failed: {type(error).__name__}: {error}", "it must yield arrays or dicts of arrays") from error


def _talking(function: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """The function's samples; what it prints is talk and goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        samples = iter(function())
    end = object()
    while True:
        with contextlib.redirect_stdout(sys.stderr):
            sample = next(samples, end)
        if sample is end:
            return
        yield sample


def _named(item: Any, name: str, signature: Signature) -> dict[str, Array]:
    import numpy as np

    if isinstance(item, Mapping):
        return {str(key): np.asarray(value) for key, value in item.items()}
    if isinstance(item, (tuple, list)) and len(item) == len(signature.inputs) and all(hasattr(part, "shape") for part in item):
        return {spec.name: np.asarray(part) for spec, part in zip(signature.inputs, item, strict=True)}
    if not hasattr(item, "shape"):
        raise UsageError(f"{name} is a {type(item).__name__}", "yield an array, or a dict of input name to array")
    return {"": np.asarray(item)}
