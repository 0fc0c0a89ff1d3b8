"""A C library for firmware: a typed header, the model's sources in one folder, a self-test against golden outputs, build files.

All sources are below `src/`, so that Arduino finds them as CMake, Zephyr and ESP-IDF do; C++ is `.cpp`, the one ending that Arduino builds. An
application's include path has `src/` with one header of the model's; the others, CMSIS among them, are in a folder of their own and hide nobody
else's. Names that the linker sees begin with the library's name, those of CMSIS-NN too, so that one firmware can hold several models, and
another CMSIS-NN beside them.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgekit.bundle import Bundle
from edgekit.embed import build_files, c_interface, c_text
from edgekit.errors import UsageError
from edgekit.manifest import Manifest
from edgekit.tensors import Arrays, quantize

KIND = "C library"
DEFAULT_NAME = "model"
GOLDEN_BYTES = 4096
"""Golden samples are taken until they fill this much flash; one always is."""
SOURCES = (".c", ".cpp", ".h")
TAKEN = frozenset(
    re.findall(
        r"\w+",
        "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic stdbool stddef stdint "
        "stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype new unistd all clean help install package test self_test",
    )
)
"""Headers of C and targets of CMake: a library of that name would stand in their place."""
_FOREIGN = re.compile(r"\barm_(?!\w+\.[ch]\b)\w+")
"""Names of CMSIS-NN, its files apart."""


def write(opened: Bundle, name: str, folder: Path) -> Sequence[str]:
    """Fill `folder`; what firmware must know. Raises `UsageError` for a name that is no C identifier."""
    name = name or DEFAULT_NAME
    if not c_interface.is_identifier(name):
        raise UsageError(f"--name {name}: not a name in C", "letters, digits and _, not a digit first, no keyword")
    if name.lower() in TAKEN:
        raise UsageError(f"--name {name}: a header of C or a target of CMake is called so", f"another one, as {name}_model")
    manifest = opened.manifest
    tflm = manifest.artifact.format == "tflite"
    (folder / "src" / name).mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="edgekit-embed-") as scratch:
        _take(opened.extract("trim/src" if tflm else manifest.artifact.main, Path(scratch)), folder, name)
    signature, inputs = manifest.signature, c_interface.names(manifest.signature)
    files = {
        f"{name}.h": c_interface.header(name, manifest),
        f"{name}/{name}.c": c_interface.wrapper(name, signature, inputs),
        f"{name}/{name}_self_test.c": c_interface.self_test(name, signature, golden(opened)),
    }
    for place, text in files.items():
        (folder / "src" / place).write_text(text, "utf-8")
    (folder / "README.md").write_text(_readme(name, manifest, tflm=tflm), "utf-8")
    sources = sorted(f"{name}/{path.name}" for path in (folder / "src" / name).iterdir() if path.suffix in (".c", ".cpp"))
    build_files.write(folder, name, sources, tflm=tflm, main=not tflm)
    return (f"call {name}_self_test() once on the board: 0 when it computes what this machine did", *_needs(tflm=tflm))


def golden(opened: Bundle) -> list[tuple[Arrays, Arrays]]:
    """Stored inputs and outputs of the first samples, in order from the model's initial state, as many as `GOLDEN_BYTES` holds."""
    manifest = opened.manifest
    size = sum(c_text.size(spec) for spec in (*manifest.signature.inputs, *manifest.signature.outputs))
    count = min(max(1, GOLDEN_BYTES // size), len({name for name in manifest.files if name.startswith("golden/host/") and name.endswith("-0.raw")}))
    rows: list[tuple[Arrays, Arrays]] = []
    for sample in range(count):
        given = _tensors(opened, "inputs", sample)
        stored = {spec.name: quantize(given[spec.name], spec) for spec in manifest.signature.inputs}
        rows.append((stored, _tensors(opened, "host", sample)))
    return rows


def _tensors(opened: Bundle, kind: str, sample: int) -> Arrays:
    signature = opened.manifest.signature
    specs = signature.inputs if kind == "inputs" else signature.outputs
    return {spec.name: opened.golden(kind, sample, index) for index, spec in enumerate(specs)}


def _take(files: Sequence[Path], folder: Path, name: str) -> None:
    """Copy sources to `src/NAME/`, with names that begin with the library's; licenses of third parties beside `src/`."""
    for path in files:
        own = "third_party" not in path.parts
        if path.suffix in SOURCES:
            text = _FOREIGN.sub(rf"{name}_\g<0>", path.read_text("utf-8"))
            place = folder / "src" / name / (_renamed(path.name, name) if own else path.name)
            place.write_text(_renamed(text, name) if own else _CHANGED.format(name=name) + text, "utf-8")
        elif path.name.startswith("LICENSE"):
            (folder / f"{path.name.partition('.')[0]}-{path.parent.name}.txt").write_bytes(path.read_bytes())


def _renamed(text: str, name: str) -> str:
    return re.sub(r"\bbknn_net", f"bknn_{name}", re.sub(r"\bedgekit_model", f"{name}_core", text))


def _needs(*, tflm: bool) -> tuple[str, ...]:
    return ("it needs TensorFlow Lite Micro in the firmware's build",) if tflm else ()


def _readme(name: str, manifest: Manifest, *, tflm: bool) -> str:
    core = manifest.target.options.get("core", "")
    places = {part: "SRAM" if part.category == "arena" else "flash" for part in manifest.usage.parts if part.installed_bytes}
    rows = "\n".join(f"| {part.name} | {part.installed_bytes:,} | {place} | {part.kind} |" for part, place in places.items())
    way = "TensorFlow Lite Micro, which the firmware must bring" if tflm else "generated C11 without heap or interpreter"
    calls = f"{name}_init(), then {name}_run(...) for each inference; {name}_self_test() proves the build"
    uses = (
        "CMake: `add_subdirectory`. Zephyr: list this folder in `ZEPHYR_EXTRA_MODULES`. Arduino: copy it to `libraries/`. "
        "ESP-IDF: copy it to `components/`."
    )
    return _README.format(name=name, model=manifest.name, target=manifest.target.name, core=core, way=way, rows=rows, calls=calls, uses=uses)


_CHANGED = "/* Changed when it was embedded: names of functions and types begin with {name}_. */\n"
"""The notice of a change that the Apache license asks for."""

_README = """# {model} for {core}

Written by `edgekit embed` from a bundle for {target}: {way}.

{calls}. See `src/{name}.h`.

{uses}

| part | bytes | where | figure |
| --- | --- | --- | --- |
{rows}
"""
