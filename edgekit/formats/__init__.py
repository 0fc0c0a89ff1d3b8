"""Model formats: one module each, found by name. A format module has

- `open(reference, inputs) -> Model`: read and check a model (`inputs`: shapes the user fixed, by input name);
- `session(model) -> Session`: run it on this machine;
- `graph(model) -> Graph`: its operators, where the format has them.

The set is closed; converters join the formats.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from edgekit import fingerprint
from edgekit.errors import FULL, BundleError, ConversionError, EdgekitError, UsageError, first_line
from edgekit.tensors import Array, Arrays, Signature

Shapes = Mapping[str, tuple[int, ...]]


SUFFIXES = {
    ".pt2": "torch",
    ".pt": "torch",
    ".pth": "torch",
    ".keras": "keras",
    ".h5": "keras",
    ".onnx": "onnx",
    ".tflite": "tflite",
    ".mlpackage": "mlprogram",
    ".mlmodel": "mlprogram",
}


@dataclasses.dataclass(frozen=True)
class Model:
    """A model that was opened: `path` for a file or folder, `handle` for an object in memory (an exported program, a Keras model).

    `digest` is the SHA-256 (hex) of the source: its files, or graph and weights of an object. `notices` are things the user should know
    (dimensions fixed, training mode switched off). `examples` are inputs that came with the model, if any.
    """

    format: str
    name: str
    signature: Signature
    digest: str
    path: Path | None = None
    handle: Any = None
    notices: tuple[str, ...] = ()
    examples: Arrays | None = None


class Session(Protocol):
    """A model ready to run on this machine, in float or in its stored types."""

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Outputs by name, in the signature's order, for inputs of the signature's shapes and dtypes."""


def module(format_name: str) -> ModuleType:
    """The module of a format."""
    return importlib.import_module(f"edgekit.formats.{format_name}")


def open(reference: str, inputs: Shapes | None = None) -> Model:
    """Open a model by file, folder or `package.module:function`.

    Raises `UsageError` for a reference that names nothing, `ConversionError` for a model that cannot be used.
    """
    with _as_source(reference):
        model: Model = _module_of(reference).open(reference, dict(inputs or {}))
    return model


def in_float32(model: Model) -> Model:
    """What a float reference is made of: an ONNX model with its half precision widened (other formats widen it as they open), else itself."""
    if model.format != "onnx":
        return model
    wide: Model = module(model.format).in_float32(model)
    return wide


def session(model: Model) -> Session:
    """Make `model` ready to run here. Raises `ConversionError` when its weights cannot be read."""
    with _as_source(model.name):
        ready: Session = module(model.format).session(model)
    return ready


@contextlib.contextmanager
def _as_source(name: str) -> Iterator[None]:
    """The seam to frameworks that read models: what they raise is a model that cannot be used. So is, as a source, what makes a bundle corrupt."""
    try:
        yield
    except BundleError as error:
        raise ConversionError(error.message, error.hint or "export or copy the model again") from error
    except EdgekitError:
        raise
    except Exception as error:  # readers of formats raise what their parts raise
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        what = f"{name}: cannot be used as it is ({type(error).__name__}: {first_line(error)})"
        raise ConversionError(what, "does it run in its own framework, with inputs of these shapes?") from error


def _module_of(reference: str) -> ModuleType:
    path, named = fingerprint.split(reference)
    present = fingerprint.exists(path)
    if present and path.is_dir() and (path / "saved_model.pb").is_file():
        return module("savedmodel")
    if path.suffix.lower() in SUFFIXES and present:
        if named and path.suffix.lower() != ".tflite":
            raise UsageError(f"{reference}: {path.suffix} files have no signatures", "leave out the #NAME: it is for SavedModels and .tflite files")
        return module(SUFFIXES[path.suffix.lower()])
    if ":" in reference and not present:
        return module("function")
    if not present:
        raise UsageError(f"{reference[:200]}: no such file or folder", "give a model file, a SavedModel folder or package.module:function")
    raise UsageError(
        f"{reference}: not a model format that edgekit reads", f"known suffixes: {', '.join(SUFFIXES)}; a SavedModel folder; package.module:function"
    )
