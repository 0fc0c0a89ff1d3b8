"""TensorFlow Lite Micro for the emulated Cortex-M55 as Arm compiled it: the inference runner in the package mlia, linked in as it is.

The runner (Apache-2.0, of August 2022, GCC 10.3) holds the interpreter and every kernel of `AllOpsResolver`, CMSIS-NN's among them, and its
symbols. Its bytes are laid where its linker placed them, edgekit's vectors over its own; `apps/mcu/tflm_image.c` calls it by address.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from edgekit import resources
from edgekit.errors import MissingPackageError
from edgekit.virtual.cortex_m import elf
from edgekit.virtual.cortex_m.boards import Board, Region
from edgekit.virtual.cortex_m.build import Interpreter, memory

PACKAGE, RELEASE = "mlia", "0.9.2"
INSTALL = f"pip install --no-deps {PACKAGE}=={RELEASE}"
CORE = "cortex-m55"
VERSION = "compiled by Arm, 2022-08"
_FILE = "mlia/resources/backends/applications/inference_runner-sse-300-22.08.02-ethos-U55-Default-noTA/ethos-u-inference_runner.axf"
_SHA256 = "1a7378a8be2cb0e3bb2664fc4583e6a3035039f5a74f44e1a8dfd662206e5b8a"
_CODE, _DATA = 0x0000_0000, 0x1100_0000  # where its two segments lie: ITCM, and BRAM behind its secure alias
_VECTORS_BYTES = 64
_INSTEAD = {"_exit": b"\xff\xde", "UartPutc": b"\x70\x47"}
"""Instructions over the image's own: `udf`, so that a failed assertion is told, not waited for; `bx lr`, as nobody takes what a port would send."""
_MARGIN_BYTES = 16 << 10
"""Arena beyond what today's interpreter takes: this one is older, and keeps other structures."""

OTHERWISE = {
    "MEAN": "rounds otherwise",
    "FULLY_CONNECTED": "knows one scale of the weights, not one a channel",
}
"""What its kernels compute otherwise than those of today (measured against LiteRT's reference kernels, operator by operator)."""
ABSENT = frozenset(("BATCH_MATMUL", "LOG_SOFTMAX", "REDUCE_MIN", "REVERSE_V2"))
"""Operators that it does not register, of those that a converter emits; others are found by asking it."""
NO_INT16 = frozenset(("MUL", "AVERAGE_POOL_2D", "MAX_POOL_2D", "EXPAND_DIMS", "TRANSPOSE", "TRANSPOSE_CONV", "MAXIMUM", "MINIMUM", "PACK", "UNPACK"))
"""Operators whose kernels here are for 8 bits only (measured likewise; TRANSPOSE_CONV reads a bias that is absent)."""

_FUNCTIONS = {
    "RESOLVER": "_ZN6tflite14AllOpsResolverC1Ev",
    "FIND": "_ZNK6tflite22MicroMutableOpResolverILj128EE6FindOpENS_15BuiltinOperatorE",
    "REPORTER": "_ZN6tflite21GetMicroErrorReporterEv",
    "ALLOCATOR": "_ZN6tflite14MicroAllocator6CreateEPhjPNS_13ErrorReporterE",
    "PERSISTENT": "_ZN6tflite14MicroAllocator24AllocatePersistentBufferEj",
    "USED": "_ZNK6tflite14MicroAllocator10used_bytesEv",
    "INTERPRETER": (
        "_ZN6tflite16MicroInterpreterC1EPKNS_5ModelERKNS_15MicroOpResolverEPNS_14MicroAllocatorE"
        "PNS_13ErrorReporterEPNS_22MicroResourceVariablesEPNS_13MicroProfilerE"
    ),
    "ALLOCATE": "_ZN6tflite16MicroInterpreter15AllocateTensorsEv",
    "INPUT": "_ZN6tflite16MicroInterpreter5inputEj",
    "OUTPUT": "_ZN6tflite16MicroInterpreter6outputEj",
    "INVOKE": "_ZN6tflite16MicroInterpreter6InvokeEv",
}
"""Macro of `tflm_image.c` -> the function it calls, in the names of the Itanium C++ ABI."""


def path() -> Path:
    """The runner's file, with exactly the bytes that `tflm_image.c` was written for. Raises `MissingPackageError`."""
    try:
        found = Path(str(metadata.distribution(PACKAGE).locate_file(_FILE)))
        content = found.read_bytes()
    except (metadata.PackageNotFoundError, OSError) as error:
        raise MissingPackageError(f"{PACKAGE}, which holds TFLM for {CORE}, is not installed: {error}", INSTALL) from error
    if hashlib.sha256(content).hexdigest() != _SHA256:
        raise MissingPackageError(f"{found.name} of {PACKAGE} is not the one of release {RELEASE}", INSTALL)
    return found


def arena_bytes(measured_bytes: int) -> int:
    """An arena that is ample for this interpreter, from what today's takes."""
    return measured_bytes + measured_bytes // 4 + _MARGIN_BYTES


def interpreter(board: Board, scratch: Path, operators: Sequence[int], variables: int) -> Interpreter:
    """What firmware around the image is compiled from, written into `scratch`, and where it lies.

    `operators`: builtin codes that the model needs, `variables`: how many resource variables it makes.

    Raises `MissingPackageError` without the image.
    """
    image = path()
    code, data = (bytearray(elf.segments(image)[at]) for at in (_CODE, _DATA))
    symbols = elf.symbols(image)
    for name, instruction in _INSTEAD.items():
        at = symbols[name] & ~1
        code[at : at + len(instruction)] = instruction
    (scratch / "tflm_image.h").write_text(_addresses(symbols, operators, variables), "ascii")
    (scratch / "tflm_code.bin").write_bytes(code[_VECTORS_BYTES:])
    (scratch / "tflm_data.bin").write_bytes(data)
    (scratch / "tflm_image.s").write_text(_INCLUDED, "ascii")
    rest = -(-len(code) // 16) * 16
    ours = Region(board.code.origin + rest, board.code.size_bytes - rest)
    text = memory(board, ours) + _SECTIONS.format(vectors=_VECTORS_BYTES, code=rest - _VECTORS_BYTES, data=_DATA, data_bytes=-(-len(data) // 16) * 16)
    glue = resources.directory("apps") / "mcu" / "tflm_image.c"
    return Interpreter((f"-I{scratch}", f"-Wa,-I{scratch}", str(scratch / "tflm_image.s"), str(glue)), text, ready_made=True)


def _addresses(symbols: Mapping[str, int], operators: Sequence[int], variables: int) -> str:
    """The header of `tflm_image.c`."""
    lines = [f"#define TFLM_{name} {symbols[symbol] | 1:#x}u" for name, symbol in _FUNCTIONS.items()]  # the lowest bit: Thumb
    lines += [f"#define TFLM_OPERATORS {{{', '.join(map(str, operators))}}}", f"#define TFLM_VARIABLES {variables}"]
    return "\n".join(lines) + "\n"


_INCLUDED = """.section .tflm_code,"ax"
.incbin "tflm_code.bin"
.section .tflm_data,"aw"
.incbin "tflm_data.bin"
"""

_SECTIONS = """MEMORY {{
  VECTORS (rx) : ORIGIN = 0, LENGTH = {vectors:#x}
  TFLM_CODE (rx) : ORIGIN = {vectors:#x}, LENGTH = {code:#x}
  TFLM_DATA (rw) : ORIGIN = {data:#x}, LENGTH = {data_bytes:#x}
}}
SECTIONS {{
  .vectors : {{ KEEP(*(.vectors)) }} > VECTORS
  .tflm_code : {{ KEEP(*(.tflm_code)) }} > TFLM_CODE
  .tflm_data : {{ KEEP(*(.tflm_data)) }} > TFLM_DATA
}}
"""
