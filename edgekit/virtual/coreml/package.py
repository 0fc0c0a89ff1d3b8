"""An .mlpackage folder on disk: its manifest, the specification file and the weight blobs. Everything in it is untrusted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from pathlib import Path, PurePosixPath
from typing import Any

from edgekit.errors import BundleError, ConversionError, UsageError
from edgekit.tensors import Array
from edgekit.virtual.coreml import packed, spec

SENTINEL = 0xDEADBEEF
HEADER = struct.Struct("<II")
METADATA = struct.Struct("<IIQQQ")
"""Blob metadata of MIL blob storage version 2: sentinel, dtype, size in bytes, data offset, padding bits.

Source: coremltools, mlmodel/src/MILBlob/Blob/StorageFormat.hpp.
"""

BLOB_DTYPES = {
    1: "float16",
    2: "float32",
    3: "uint8",
    4: "int8",
    6: "int16",
    7: "uint16",
    8: "int4",
    9: "uint1",
    10: "uint2",
    11: "uint4",
    12: "uint3",
    13: "uint6",
    14: "int32",
    15: "uint32",
}
WEIGHTS_PREFIX = "@model_path/"
MAX_ELEMENTS = 1 << 33


@dataclasses.dataclass(frozen=True)
class Package:
    """A package that was read: `folder` is the .mlpackage, `model` its specification, beside which `@model_path` begins."""

    folder: Path
    model: Path
    program: spec.Program
    digest: str

    @property
    def data(self) -> Path:
        """The folder of the specification."""
        return self.model.parent

    @property
    def file_bytes(self) -> int:
        """Bytes of all files in the package."""
        return sum(path.stat().st_size for path in _files(self.folder))


def read(folder: Path) -> Package:
    """Read and check a package.

    Raises `UsageError` when it is not there, `BundleError` when it is damaged, hostile or newer, `ConversionError` when it is no ML Program.
    """
    if folder.is_file():
        _refuse_file(folder)
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such package", "an .mlpackage is a folder")
    model = _model_file(folder)
    try:
        data = model.read_bytes()
    except OSError as error:
        raise BundleError(f"{folder.name}: the model specification is missing ({error.strerror})") from error
    package = Package(folder, model, spec.parse(data), _digest(folder))
    _check_blobs(package.program.block, package)
    return package


def _refuse_file(path: Path) -> None:
    """An .mlmodel file is a specification alone: what kind it holds is said by reading it."""
    if path.suffix == ".mlmodel":
        spec.parse(path.read_bytes())
        raise ConversionError(f"{path.name} is an ML Program outside its package, without weights", "give the .mlpackage folder")
    raise BundleError(f"{path.name} is a file, and an .mlpackage is a folder", "copy the whole folder; an archive of it must be unpacked first")


def _check_blobs(block: spec.Block, package: Package) -> None:
    """Every weight that the program names is there in full. Raises `BundleError`."""
    for operation in block.operations:
        for value in operation.attributes.values():
            if value.kind == "blob":
                file, offset = value.payload
                _stored_bytes(_weights(package, file), offset, value.type)
        for inner in operation.blocks:
            _check_blobs(inner, package)


def _model_file(folder: Path) -> Path:
    manifest = folder / "Manifest.json"
    try:
        document = json.loads(manifest.read_bytes())
        root = document["rootModelIdentifier"]
        entry = document["itemInfoEntries"][root]["path"]
    except OSError as error:
        raise BundleError(f"{folder.name}: there is no Manifest.json", "an .mlpackage is a folder with a manifest and a Data folder") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleError(f"{folder.name}/Manifest.json is damaged: {error!r}") from error
    return inside(folder / "Data", entry)


def inside(folder: Path, name: Any) -> Path:
    """The path of `name` within `folder`, symbolic links followed. Raises `BundleError` when it leaves the folder."""
    path = PurePosixPath(name) if isinstance(name, str) else PurePosixPath("/")
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in str(path) or "\0" in str(path):
        raise BundleError(f"the path {name!r} leaves the package")
    full = folder / path
    if not full.resolve().is_relative_to(folder.resolve()):
        raise BundleError(f"the path {name!r} leaves the package through a link")
    return full


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for path in _files(folder):
        if path.name == "Manifest.json":  # holds random identifiers
            continue
        with path.open("rb") as file:
            whole.update(path.relative_to(folder).as_posix().encode() + b"\0" + hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def blob(package: Package, file: str, offset: int, kind: spec.Type) -> Array:
    """The constant at `offset` of a weight file, of the dtype and shape that the program states (sub-byte integers widened to 8 bits).

    Raises `BundleError` when the file is absent, truncated, or holds something else there.
    """
    path = _weights(package, file)
    size = _stored_bytes(path, offset, kind)
    data = packed.read(path, size.offset, size.length)
    return packed.unpack(data, kind.dtype, kind.shape)


def _weights(package: Package, file: str) -> Path:
    if not file.startswith(WEIGHTS_PREFIX):
        raise BundleError(f"the weight file {file!r} is not under {WEIGHTS_PREFIX}")
    return inside(package.data, file.removeprefix(WEIGHTS_PREFIX))


@dataclasses.dataclass(frozen=True)
class _Extent:
    offset: int
    length: int


def _stored_bytes(path: Path, offset: int, kind: spec.Type) -> _Extent:
    try:
        total = path.stat().st_size
        with path.open("rb") as file:
            version = HEADER.unpack(file.read(HEADER.size))[1]
            file.seek(min(offset, total))
            sentinel, dtype, length, start, _ = METADATA.unpack(file.read(METADATA.size))
    except FileNotFoundError as error:
        raise BundleError(
            f"the weight file {path.name} is missing from the package", "copy the whole .mlpackage folder, not only the model file"
        ) from error
    except (OSError, struct.error) as error:
        raise BundleError(f"{path.name} is truncated: no weight at byte {offset}") from error
    stated = BLOB_DTYPES.get(dtype)
    if version != 2 or sentinel != SENTINEL or stated != kind.dtype:
        raise BundleError(f"{path.name} is damaged: no {kind.dtype} weight at byte {offset} (version {version}, found {stated})")
    wanted = packed.stored_bytes(kind.dtype, _elements(kind))
    if length != wanted or start + length > total:
        raise BundleError(f"{path.name} is truncated: {length} bytes at {start} of {total}, but {kind.dtype}{list(kind.shape)} takes {wanted}")
    return _Extent(start, length)


def _elements(kind: spec.Type) -> int:
    count = 1
    for size in kind.shape:
        count *= size
    if not 0 <= count <= MAX_ELEMENTS:
        raise BundleError(f"a constant of shape {list(kind.shape)} is not a size that can be stored")
    return count
