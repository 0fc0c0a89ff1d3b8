"""Bundles `NAME-TARGET.edgekit`: one zip, reproducible to the byte when written, untrusted when read."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from edgekit import preprocess
from edgekit.errors import BundleError, UsageError
from edgekit.manifest import SCHEMA, FileEntry, Manifest, golden_file, golden_spec
from edgekit.tensors import Array, contradiction

MANIFEST = "manifest.json"
SUFFIX = ".edgekit"
MAX_FILES = 10_000
MAX_MANIFEST_BYTES = 64 * 1024**2
MAX_TOTAL_BYTES = 8 * 1024**3
MAX_NAME_BYTES, MAX_PART_BYTES = 1000, 255
"""Of a file's name with its folders, and of each part of it: what every system can hold."""
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile bounds what the others unpack to only after the fact
_EPOCH = (1980, 1, 1, 0, 0, 0)
_CHUNK = 1 << 20
_AGAIN = "copy or package the bundle again"


class Bundle:
    """An open, verified bundle. Use as a context manager."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, manifest: Manifest, sha256: str) -> None:
        self.path = path
        self.manifest = manifest
        self.sha256 = sha256
        self._archive = archive

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def read(self, name: str) -> bytes:
        """The bytes of one file. Raises `BundleError` when the manifest does not list it."""
        if name not in self.manifest.files:
            raise BundleError(f"{self.path.name}: there is no {name} in this bundle")
        return self._archive.read(name)

    def golden(self, kind: str, sample: int, tensor: int) -> Array:
        """A golden tensor (`inputs`, `reference` or `host`) in the type it is stored in. Raises `BundleError` when it is another than stated."""
        import numpy as np

        name = golden_file(kind, sample, tensor)
        try:
            spec = golden_spec(self.manifest, kind, tensor)
            return np.frombuffer(self.read(name), np.dtype(spec.dtype).newbyteorder("<")).reshape(spec.shape).astype(spec.dtype)
        except (IndexError, TypeError, ValueError) as error:
            raise BundleError(f"{self.path.name}: {name} is not what the manifest says: {error}", _AGAIN) from error

    def extract(self, prefix: str, folder: Path) -> list[Path]:
        """Write the file `prefix`, or every file below the folder `prefix`, into `folder` under its last parts; the paths written."""
        base = PurePosixPath(prefix)
        written = []
        for name in self.manifest.files:
            path = PurePosixPath(name)
            if path == base or base in path.parents:
                out = folder / base.name / path.relative_to(base) if path != base else folder / base.name
                out.parent.mkdir(parents=True, exist_ok=True)
                with self._archive.open(name) as source, out.open("wb") as sink:
                    while chunk := source.read(_CHUNK):
                        sink.write(chunk)
                written.append(out)
        if not written:
            raise BundleError(f"{self.path.name}: there is no {prefix} in this bundle")
        return written


def write(path: Path, manifest: Manifest, files: Mapping[str, Path | bytes]) -> None:
    """Write a bundle: entries sorted, times fixed, `manifest.files` filled from `files`. The file appears complete or not at all.

    Raises `UsageError` when the place cannot be written.
    """
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        entries = {name: _entry(files[name]) for name in sorted(files)}
        document = msgspec.json.encode(msgspec.structs.replace(manifest, files=entries), order="deterministic")
        _add(archive, MANIFEST, msgspec.json.format(document, indent=1))
        for name in entries:
            _add(archive, name, files[name])


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place on success and is removed on failure. Raises `UsageError` when it cannot be written."""
    with _part(path) as temporary:
        yield temporary
        temporary.replace(path)


def check_writable(path: Path) -> None:
    """Raise `UsageError` before the work when its result could not be written to `path` after it. Nothing is left there."""
    made: list[Path] = []
    with contextlib.suppress(OSError):  # a name that no file can have: the next lines say so
        made = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    with _part(path) as temporary:
        temporary.touch()
    for folder in made:
        with contextlib.suppress(OSError):  # somebody else has put something there
            folder.rmdir()


@contextlib.contextmanager
def _part(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}", "choose a writable place") from error
    finally:
        with contextlib.suppress(OSError):  # what made the place unwritable may keep this from looking there
            temporary.unlink()


def open(path: Path) -> Bundle:
    """Open and verify a bundle: names, sizes and checksums of every file.

    Raises `UsageError` when there is no such file, `BundleError` when it is corrupt, hostile or of a newer schema. Nothing is written.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such bundle", "make one with 'edgekit package'")
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
            manifest = _manifest(path, archive)
            _verify(path, archive, manifest)
        except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError, OSError, RuntimeError, ValueError, zlib.error) as error:
            raise BundleError(f"{path.name}: not a readable bundle: {error}", _AGAIN) from error
        bundle = Bundle(path, archive, manifest, hash_file(path))
        stack.pop_all()
        return bundle


def files_of(main: str, path: Path) -> dict[str, Path | bytes]:
    """A file, or the files of a folder, by their names in a bundle that holds it as `main`."""
    if path.is_file():
        return {main: path}
    return {f"{main}/{file.relative_to(path).as_posix()}": file for file in sorted(path.rglob("*")) if file.is_file()}


def is_file_name(name: str) -> bool:
    """Whether files of any system can be called so: what a bundle is called goes into names of what is made of it."""
    return name.isprintable() and name not in ("", ".", "..") and not set("/\\") & set(name)


def hash_file(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _manifest(path: Path, archive: zipfile.ZipFile) -> Manifest:
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if len(names) > MAX_FILES:
        raise BundleError(f"{path.name}: {len(names)} files; a bundle has at most {MAX_FILES}", _AGAIN)
    if len(set(names)) != len(names):
        raise BundleError(f"{path.name}: a file name appears twice", _AGAIN)
    for info in infos:
        _check_entry(path, info)
    if MANIFEST not in names:
        raise BundleError(f"{path.name}: no {MANIFEST}; not an edgekit bundle", "make one with 'edgekit package'")
    if archive.getinfo(MANIFEST).file_size > MAX_MANIFEST_BYTES:
        raise BundleError(f"{path.name}: {MANIFEST} is {archive.getinfo(MANIFEST).file_size} bytes", _AGAIN)
    data = archive.read(MANIFEST)
    _check_schema(path, data)
    try:
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise BundleError(f"{path.name}: {MANIFEST}: {error}", _AGAIN) from error


def _check_schema(path: Path, data: bytes) -> None:
    try:
        schema = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("schema", msgspec.Raw(b"0"))
        number = msgspec.json.decode(schema, type=int)
    except msgspec.DecodeError as error:
        raise BundleError(f"{path.name}: {MANIFEST}: {error}", _AGAIN) from error
    if number != SCHEMA:
        raise BundleError(
            f"{path.name}: bundle schema {number}, but this edgekit reads {SCHEMA}", "use the edgekit version that wrote it, or package again"
        )


def _check_entry(path: Path, info: zipfile.ZipInfo) -> None:
    name = info.filename
    pure = PurePosixPath(name)
    escapes = not name or pure.is_absolute() or ".." in pure.parts or "\\" in name or ":" in name or str(pure) != name
    if escapes:
        raise BundleError(f"{path.name}: the entry {name!r} leaves the bundle", _AGAIN)
    encoded = name.encode()
    if len(encoded) > MAX_NAME_BYTES or max(map(len, encoded.split(b"/"))) > MAX_PART_BYTES or not name.isprintable():
        raise BundleError(f"{path.name}: not every system can hold the name of the entry {name[:MAX_PART_BYTES]!r}", _AGAIN)
    if info.compress_type not in _COMPRESSIONS:
        raise BundleError(f"{path.name}: the entry {name!r} is compressed otherwise than by deflate", _AGAIN)
    if stat.S_ISLNK(info.external_attr >> 16):
        raise BundleError(f"{path.name}: the entry {name!r} is a symbolic link", _AGAIN)


def _verify(path: Path, archive: zipfile.ZipFile, manifest: Manifest) -> None:
    present = {info.filename for info in archive.infolist()} - {MANIFEST}
    for name in sorted(present ^ manifest.files.keys()):
        raise BundleError(f"{path.name}: {name} is {'not listed in' if name in present else 'missing, though listed in'} {MANIFEST}", _AGAIN)
    if sum(entry.bytes for entry in manifest.files.values()) > MAX_TOTAL_BYTES:
        raise BundleError(f"{path.name}: unpacks to more than {MAX_TOTAL_BYTES} bytes", _AGAIN)
    for name, entry in manifest.files.items():
        _verify_file(path, archive, name, entry)
    for problem in _contradictions(manifest):
        raise BundleError(f"{path.name}: {MANIFEST}: {problem}", _AGAIN)


def _contradictions(manifest: Manifest) -> Iterator[str]:
    """What a manifest says that cannot be, so that nothing behind it has to ask."""
    if not is_file_name(manifest.name):
        yield f"{manifest.name!r} is no name of a bundle"
    for signature in (manifest.signature, manifest.source_signature):
        for spec in (*signature.inputs, *signature.outputs):
            if said := contradiction(spec):
                yield said
    if manifest.preprocess is not None and (said := preprocess.contradiction(manifest.preprocess)):
        yield f"preprocess: {said}"
    folders = {folder for name in manifest.files for folder in PurePosixPath(name).parents if folder.parts}
    for name in manifest.files:
        if PurePosixPath(name) in folders:
            yield f"{name!r} is a file and a folder"
    main, golden = PurePosixPath(manifest.artifact.main), manifest.golden
    if manifest.artifact.main not in manifest.files and main not in folders:
        yield f"the artifact {manifest.artifact.main!r} is not among the files"
    if not golden.samples:
        yield "there is no golden sample to compare with"
    if not 0 <= golden.random <= len(golden.samples):
        yield f"{golden.random} of {len(golden.samples)} samples are random"


def _verify_file(path: Path, archive: zipfile.ZipFile, name: str, entry: FileEntry) -> None:
    digest, size = hashlib.sha256(), 0
    with archive.open(name) as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            if size > entry.bytes:
                raise BundleError(f"{path.name}: {name} unpacks to more than the {entry.bytes} bytes its manifest states", _AGAIN)
            digest.update(chunk)
    if size != entry.bytes or digest.hexdigest() != entry.sha256:
        raise BundleError(f"{path.name}: {name} does not match its checksum", _AGAIN)


def _entry(content: Path | bytes) -> FileEntry:
    if isinstance(content, bytes):
        return FileEntry(len(content), hashlib.sha256(content).hexdigest())
    return FileEntry(content.stat().st_size, hash_file(content))


def _add(archive: zipfile.ZipFile, name: str, content: Path | bytes) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    info.create_system = 3
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    with archive.open(info, "w", force_zip64=size >= zipfile.ZIP64_LIMIT) as sink:
        if isinstance(content, bytes):
            sink.write(content)
            return
        with content.open("rb") as source:
            while chunk := source.read(_CHUNK):
                sink.write(chunk)
