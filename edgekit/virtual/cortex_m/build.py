"""Firmware for an emulated core: the template of `apps/mcu` and a generated model, compiled by arm-none-eabi-gcc."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgekit import resources
from edgekit.errors import ConversionError, EdgekitError
from edgekit.tensors import DTYPES, TensorSpec
from edgekit.virtual.cortex_m.boards import Board, Region, program
from edgekit.virtual.cortex_m.elf import Sizes
from edgekit.virtual.cortex_m.elf import sizes as elf_sizes

INTERFACE = 1
MODEL_FILE = "edgekit_model.json"
STACK_BYTES = 32 << 10
_TEMPLATE = ("main_semihost.c", "semihost.c", "startup.c")
_COMPILER = "arm-none-eabi-gcc"
_STRICT = ("-std=gnu11", "-O2", "-ffunction-sections", "-fdata-sections")
_LINK = ("-nostartfiles", "-specs=nosys.specs", "-Wl,--gc-sections", "-Wl,--no-warn-rwx-segments")
_TIMEOUT_S = 300
_MAX_TENSORS = 16


class Model(msgspec.Struct, frozen=True):
    """What `edgekit_model.json` says: tensors in the order of the C arrays, the arena in bytes, definitions that the sources need."""

    interface: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    arena_bytes: int = 0
    defines: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """What a model with an interpreter is linked with: arguments for the compiler, and the linker's regions where they are not the board's.

    `ready_made`: it is all there before the model is known, so that sizes of the firmware tell nothing.
    """

    arguments: tuple[str, ...]
    memory: str = ""
    ready_made: bool = False


NO_INTERPRETER = Interpreter(())


@dataclasses.dataclass(frozen=True)
class Firmware:
    """A built firmware: the ELF file, what it takes, the model in it, and the interpreter behind that."""

    elf: Path
    sizes: Sizes
    model: Model
    interpreter: Interpreter


def read_model(artifact: Path) -> Model:
    """Read and check `edgekit_model.json` of a generated model. Raises `EdgekitError`."""
    try:
        model = msgspec.json.decode((artifact / MODEL_FILE).read_bytes(), type=Model)
    except OSError as error:
        raise EdgekitError(f"{artifact.name} is not a generated model: {error.strerror}: {MODEL_FILE}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise EdgekitError(f"{MODEL_FILE}: {error}") from error
    if model.interface != INTERFACE:
        raise EdgekitError(f"{MODEL_FILE}: interface {model.interface}, but this firmware speaks {INTERFACE}", "package the model again")
    for side in (model.inputs, model.outputs):
        if not 1 <= len(side) <= _MAX_TENSORS or any(spec.dtype not in DTYPES for spec in side):
            raise EdgekitError(f"{MODEL_FILE}: 1 to {_MAX_TENSORS} inputs and outputs of known dtypes are wanted, not {side}")
    for define in model.defines:
        if not re.fullmatch(r"[A-Za-z_]\w*(=\w*)?", define):
            raise EdgekitError(f"{MODEL_FILE}: {define!r} is no preprocessor definition")
    return model


def compiler() -> str:
    """The path of the compiler. Raises `MissingPackageError`."""
    return program(_COMPILER)


def build(artifact: Path, board: Board, scratch: Path, stack_bytes: int = STACK_BYTES, interpreter: Interpreter = NO_INTERPRETER) -> Firmware:
    """Build the firmware of a generated model into `scratch`, with the interpreter that it calls.

    Raises `EdgekitError` for a malformed model, `MissingPackageError` without the compiler, `ConversionError` when it does not compile or fit.
    """
    model = read_model(artifact)
    template = resources.directory("apps") / "mcu"
    (scratch / "memory.ld").write_text(interpreter.memory or memory(board), "ascii")
    sources = [template / name for name in _TEMPLATE] + sorted(artifact.rglob("*.c"))
    headers = [template, *sorted({path.parent for path in artifact.rglob("*.h")})]
    defines = [f"-D{name}" for name in (*model.defines, f"EDGEKIT_BUFFER_BYTES={_buffer_bytes(model)}u")]
    link = [f"-L{scratch}", f"-L{template}", "-T", str(template / "firmware.ld"), f"-Wl,--defsym=EDGEKIT_STACK_BYTES={stack_bytes}", "-lm"]
    out = scratch / "firmware.elf"
    includes = [f"-I{path}" for path in headers]
    command = [compiler(), *board.flags, "-mthumb", *_STRICT, *defines, *includes, *map(str, sources), *interpreter.arguments]
    _run([*command, *_LINK, *link, "-o", str(out)], board)
    return Firmware(out, elf_sizes(out), model, interpreter)


def tensor_bytes(spec: TensorSpec) -> int:
    """The size of a tensor in memory and on the wire."""
    import numpy as np

    return spec.elements * np.dtype(spec.dtype).itemsize


def _buffer_bytes(model: Model) -> int:
    return sum((tensor_bytes(spec) + 15) // 16 * 16 for spec in (*model.inputs, *model.outputs))


def memory(board: Board) -> str:
    """The regions of `firmware.ld` on a board."""

    def line(name: str, access: str, region: Region) -> str:
        return f"  {name} ({access}) : ORIGIN = {region.origin:#010x}, LENGTH = {region.size_bytes:#x}\n"

    if board.weights == board.code:
        return f'MEMORY {{\n{line("CODE", "rx", board.code)}{line("RAM", "rw", board.ram)}}}\nREGION_ALIAS("WEIGHTS", CODE)\n'
    return f"MEMORY {{\n{line('CODE', 'rx', board.code)}{line('WEIGHTS', 'r', board.weights)}{line('RAM', 'rw', board.ram)}}}\n"


def _run(command: Sequence[str], board: Board) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise ConversionError(f"the compiler did not end within {_TIMEOUT_S} s") from error
    if done.returncode == 0:
        return
    wrong = [line for line in done.stderr.splitlines() if "error" in line or "overflowed" in line or "undefined" in line]
    over = [line for line in wrong if "overflowed" in line]
    what = f"the firmware does not fit {board.machine}" if over else f"the firmware for {board.core} does not compile"
    raise ConversionError(f"{what}: {(over or wrong or [done.stderr.strip()])[0][-400:]}")
