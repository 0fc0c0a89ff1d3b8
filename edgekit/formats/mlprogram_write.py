"""Writing Core ML packages with coremltools: programs to and from memory, and packages on disk that are the same for the same model."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import shutil
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edgekit.errors import ConversionError, require
from edgekit.formats._quiet import quiet

AUTHOR = "com.apple.CoreML"

UNUSED = ("executorch", "libsvm", "sklearn", "tensorflow", "torchao", "transformers", "xgboost")
"""Packages that coremltools imports where they are installed, for conversions that nothing here does, or not yet: most of its import is theirs."""


def coremltools() -> Any:
    """coremltools, imported without its talk, and without TensorFlow where nothing has imported that. Only what writes packages needs it."""
    with quiet(), _absent(UNUSED):
        return require("coremltools", extra="coreml", purpose="writing a Core ML package")


LOOKING = ("_deps", "converters.mil.frontend.tensorflow", "converters.mil.frontend.tensorflow2")
"""Modules of coremltools that note, when they are imported, whether TensorFlow is there: in the order of their imports."""


def coremltools_with_tensorflow() -> Any:
    """The same, told of TensorFlow where it was imported without: the modules that look for it are run again."""
    tensorflow = require("tensorflow", extra="tensorflow", purpose="converting a TensorFlow model")
    ct = coremltools()
    from coremltools import _deps
    from coremltools.converters import _converters_entry as entry

    if not _deps._HAS_TF:
        with quiet(), _absent(UNUSED):
            for name in LOOKING:
                importlib.reload(importlib.import_module(f"coremltools.{name}"))
        entry._HAS_TF_1, entry._HAS_TF_2, entry.tf = _deps._HAS_TF_1, _deps._HAS_TF_2, tensorflow
    return ct


@contextlib.contextmanager
def _absent(names: Sequence[str]) -> Iterator[None]:
    """Let imports of packages that are not imported yet fail, as if they were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None is how the import system marks what is not to be imported
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


_TYPES = "bool string bf16 fp16 fp32 fp64 int8 int16 int32 int64 uint8 uint16 uint32 uint64"
RESERVED = frozenset(f"any program func tensor list dict tuple true false state {_TYPES}".split())
"""Words of MIL's text form, which coremltools refuses as names of inputs and outputs."""


def identifier(name: str) -> str:
    """A name as ML Programs take it: letters, digits and underscores, and no word of MIL's own."""
    found = re.sub(r"[^A-Za-z0-9_]", "_", name) or "_"
    found = f"{found}_" if found in RESERVED else found
    return f"_{found}" if found[0].isdigit() else found


def save(model: Any, folder: Path, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Path:
    """Write a converted model as a package; `inputs` and `outputs` rename its features, in its order, where a name is free.

    Dates, versions and random identifiers are left out: the same model gives the same bytes.
    """
    spec = model.get_spec()
    _rename(spec, spec.description.input, inputs)
    _rename(spec, spec.description.output, outputs)
    spec.description.metadata.Clear()
    data = folder / "Data" / AUTHOR
    data.mkdir(parents=True)
    (data / "model.mlmodel").write_bytes(spec.SerializeToString(deterministic=True))
    weights = Path(model.weights_dir or "", "weight.bin")
    if model.weights_dir and weights.is_file():
        (data / "weights").mkdir()
        shutil.copyfile(weights, data / "weights" / "weight.bin")
    (folder / "Manifest.json").write_text(json.dumps(_manifest(data), indent=4, sort_keys=True), "utf-8")
    return folder


def size_bytes(model: Any) -> int:
    """What `save` would write of a converted model, but for the list of its files."""
    spec, weights = model.get_spec(), Path(model.weights_dir or "", "weight.bin")
    spec.description.metadata.Clear()
    return int(spec.ByteSize()) + (weights.stat().st_size if model.weights_dir and weights.is_file() else 0)


def load(folder: Path) -> Any:
    """The program of a package in coremltools' own form. Raises `ConversionError` when coremltools cannot read it."""
    ct = coremltools()
    try:
        with quiet():
            return program_of(ct.models.MLModel(str(folder), skip_model_load=True))
    except Exception as error:  # coremltools raises what its parts raise
        raise ConversionError(f"{folder.name}: coremltools cannot read the program: {first_line(error)}") from error


def program_of(model: Any) -> Any:
    """The program of a converted model, as it would be read from disk."""
    coremltools()
    from coremltools.converters.mil.frontend.milproto import load as milproto

    spec = model.get_spec()
    program = milproto.load(spec, specification_version=spec.specificationVersion, file_weights_dir=model.weights_dir)
    program.functions["main"].set_input_types(tuple(filter(None, map(_stated, spec.description.input))))
    return program


def _stated(feature: Any) -> Any:
    """An input that is more than a tensor of one shape: the program alone does not tell."""
    ct = coremltools()
    if feature.type.HasField("imageType"):
        image = feature.type.imageType
        color = type(image).ColorSpace.Name(image.colorSpace)
        shape = (1, 1 if color.startswith("GRAYSCALE") else 3, image.height, image.width)
        return ct.ImageType(feature.name, shape=shape, color_layout=getattr(ct.colorlayout, color), channel_first=True)
    return None


def first_line(error: BaseException) -> str:
    """What a foreign error says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _rename(spec: Any, features: Any, wanted: Sequence[str]) -> None:
    """Give features the names wanted; one that the program uses inside for something else keeps its own."""
    ct = coremltools()
    inside = _names(spec)
    for name, feature in zip(wanted, list(features), strict=False):
        if feature.name != name and identifier(name) == name and name not in inside and not name.startswith("_"):
            was = feature.name
            ct.utils.rename_feature(spec, was, name)
            for operation in _operations(spec):  # coremltools leaves the bodies of loops as they were
                for binding in (b for argument in operation.inputs.values() for b in argument.arguments if b.name == was):
                    binding.name = name


def _names(spec: Any) -> set[str]:
    found = {value.name for function in spec.mlProgram.functions.values() for value in function.inputs}
    return found | {value.name for operation in _operations(spec) for value in operation.outputs}


def _operations(spec: Any) -> Iterator[Any]:
    """Every operation, those of control-flow bodies too."""
    waiting = [block for function in spec.mlProgram.functions.values() for block in function.block_specializations.values()]
    while waiting:
        for operation in waiting.pop().operations:
            yield operation
            waiting += operation.blocks


def _manifest(data: Path) -> dict[str, Any]:
    entries = {"model.mlmodel": "Specification", "weights": "Weights"}
    ids = {name: str(uuid.uuid5(uuid.NAMESPACE_URL, f"{AUTHOR}/{name}")) for name in entries if (data / name).exists()}
    items = {ids[name]: {"author": AUTHOR, "description": f"CoreML Model {entries[name]}", "name": name, "path": f"{AUTHOR}/{name}"} for name in ids}
    return {"fileFormatVersion": "1.0.0", "itemInfoEntries": items, "rootModelIdentifier": ids["model.mlmodel"]}
