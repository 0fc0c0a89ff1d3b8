"""TensorFlow Lite Micro for an emulated core, compiled from a source tree of the user's own (`EDGEKIT_TFLM`); edgekit brings and fetches none.

`EDGEKIT_TFLM=mlia` takes a ready-made one for Cortex-M55 instead (`tflm_image`).
The tree has `tensorflow/` and, in `third_party/` of it, `flatbuffers`, `gemmlowp`, `ruy`, `kissfft` and, for Arm's kernels, `cmsis_nn`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edgekit import places, resources
from edgekit.errors import ConversionError, UsageError
from edgekit.virtual.cortex_m import tflm_image
from edgekit.virtual.cortex_m.boards import Board, program
from edgekit.virtual.cortex_m.build import Interpreter

VARIABLE = "EDGEKIT_TFLM"
FLAGS = ("-O2", "-ffunction-sections", "-fdata-sections", "-w")
CXX_FLAGS = ("-std=gnu++17", "-fno-rtti", "-fno-exceptions", "-fno-threadsafe-statics", "-fno-unwind-tables")
DEFINES = ("TF_LITE_STATIC_MEMORY", "TF_LITE_DISABLE_X86_NEON", "TF_LITE_STRIP_ERROR_STRINGS", "CMSIS_NN")
FOLDERS = (
    "tensorflow/compiler/mlir/lite/core/api",
    "tensorflow/compiler/mlir/lite/schema",
    "tensorflow/lite/core/api",
    "tensorflow/lite/core/c",
    "tensorflow/lite/kernels",
    "tensorflow/lite/kernels/internal",
    "tensorflow/lite/kernels/internal/reference",
    "tensorflow/lite/micro",
    "tensorflow/lite/micro/arena_allocator",
    "tensorflow/lite/micro/memory_planner",
    "tensorflow/lite/micro/tflite_bridge",
    "tensorflow/lite/micro/kernels",
)
CMSIS_KERNELS = "tensorflow/lite/micro/kernels/cmsis_nn"
NOT_FIRMWARE = ("_test.cc", "test_helpers.cc", "test_helper_custom_ops.cc", "fake_micro_context.cc", "mock_micro_graph.cc", "kernel_runner.cc")
PREFIX = ("tensorflow/lite/micro/micro_interpreter.h", "tensorflow/lite/micro/kernels/kernel_util.h", "tensorflow/lite/kernels/internal/common.h")
_INCLUDES = ("flatbuffers/include", "gemmlowp", "ruy", "kissfft", "cmsis_nn", "cmsis_nn/Include")
_TIMEOUT_S = 300


def tree() -> Path | None:
    """The source tree, where the user has one. Raises `UsageError` when the variable names something else."""
    named = os.environ.get(VARIABLE)
    if named in (None, "", tflm_image.PACKAGE):
        return None
    root = Path(named)
    if not (root / "tensorflow/lite/micro/micro_interpreter.cc").is_file():
        hint = f"name the folder of a tflite-micro source tree, or {tflm_image.PACKAGE}"
        raise UsageError(f"{VARIABLE}={named} holds no tensorflow/lite/micro", hint)
    return root.resolve()


def on_core(core: str) -> bool:
    """Whether TFLM is to run on an emulated core: from a source tree, or ready-made. Raises `UsageError` for a tree that is none."""
    return tree() is not None or (core == tflm_image.CORE and os.environ.get(VARIABLE) == tflm_image.PACKAGE)


def interpreter(root: Path, artifact: Path, board: Board, scratch: Path) -> Interpreter:
    """The model's C++ sources compiled into `scratch`, what they ask of a board, and the library behind them. Raises what `library` raises."""
    objects = []
    for source in sorted(artifact.rglob("*.cpp")):
        objects.append(str(scratch / f"{source.stem}.o"))
        command = [program("arm-none-eabi-g++"), *board.flags, "-mthumb", *FLAGS, *CXX_FLAGS, *_defines(), *_includes(root)]
        _run([*command, f"-I{source.parent}", "-c", str(source), "-o", objects[-1]], f"the firmware's {source.name}")
    return Interpreter((str(resources.directory("apps") / "mcu" / "cxx.c"), *objects, str(library(root, board)), "-lstdc++"))


def library(root: Path, board: Board) -> Path:
    """The tree as a static library for a core; objects are kept in the user's cache folder and compiled once.

    Raises `MissingPackageError` without the compiler, `ConversionError` for a tree that does not compile.
    """
    place = places.cache() / "tflm" / f"{board.core}-{_digest(root, board)}"
    archive = place / "libtflm.a"
    if archive.is_file():
        return archive
    place.mkdir(parents=True, exist_ok=True)
    _precompile(root, board, place)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda source: _compile(root, board, source, place), _sources(root)))
    temporary = place / f".{os.getpid()}.a"
    subprocess.run([str(Path(program("arm-none-eabi-gcc")).with_name("arm-none-eabi-ar")), "rcs", str(temporary), *map(str, objects)], check=True)
    temporary.replace(archive)
    return archive


def _includes(root: Path) -> list[str]:
    return [f"-I{root}", *(f"-I{root / 'third_party' / name}" for name in _INCLUDES)]


def _defines() -> list[str]:
    return [f"-D{name}" for name in DEFINES]


def _sources(root: Path) -> list[Path]:
    found = {path.relative_to(root): path for folder in FOLDERS for path in (root / folder).glob("*.cc") if not path.name.endswith(NOT_FIRMWARE)}
    if (root / CMSIS_KERNELS).is_dir() and (root / "third_party/cmsis_nn/Source").is_dir():
        for path in (root / CMSIS_KERNELS).glob("*.cc"):  # each takes the place of the plain kernel of its name
            found[path.parent.parent.relative_to(root) / path.name] = path
        functions = (root / "third_party/cmsis_nn/Source").rglob("*.c")
        found |= {path.relative_to(root): path for path in functions if not path.stem.endswith(("f16", "f32"))}
    return [found[place] for place in sorted(found)]


def _precompile(root: Path, board: Board, place: Path) -> None:
    """The headers that every source reads, once: they are most of the compiler's work."""
    (place / "prefix.h").write_text("".join(f'#include "{name}"\n' for name in PREFIX), "ascii")
    command = [program("arm-none-eabi-g++"), *board.flags, "-mthumb", *FLAGS, *CXX_FLAGS, *_defines(), *_includes(root), "-x", "c++-header"]
    _run([*command, str(place / "prefix.h"), "-o", str(place / "prefix.h.gch")], "TensorFlow Lite Micro's headers")


def _compile(root: Path, board: Board, source: Path, place: Path) -> Path:
    out = place / f"{hashlib.sha256(str(source.relative_to(root)).encode()).hexdigest()[:12]}-{source.stem}.o"
    if out.is_file():
        return out
    temporary = out.with_suffix(f".{os.getpid()}.part")
    language = (*CXX_FLAGS, "-include", str(place / "prefix.h")) if source.suffix == ".cc" else ("-std=gnu11",)
    command = [program("arm-none-eabi-g++" if source.suffix == ".cc" else "arm-none-eabi-gcc"), *board.flags, "-mthumb", *FLAGS, *language]
    _run([*command, *_defines(), *_includes(root), "-c", str(source), "-o", str(temporary)], f"TensorFlow Lite Micro's {source.name}")
    temporary.replace(out)
    return out


def _run(command: Sequence[str], what: str) -> None:
    """Run the compiler. Raises `ConversionError` with its first error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConversionError(f"{what} was not compiled within {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        wrong = [line for line in done.stderr.splitlines() if "error" in line or "undefined" in line or "overflowed" in line]
        raise ConversionError(f"{what} does not compile: {(wrong or [done.stderr.strip()])[0][-400:]}")


def _digest(root: Path, board: Board) -> str:
    found = hashlib.sha256(repr((board.flags, FLAGS, CXX_FLAGS, DEFINES, str(root))).encode())
    for source in _sources(root):
        stat = source.stat()
        found.update(repr((str(source), stat.st_size, stat.st_mtime_ns)).encode())
    return found.hexdigest()[:16]
