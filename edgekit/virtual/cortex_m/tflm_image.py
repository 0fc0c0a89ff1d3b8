"""TensorFlow Lite Micro for the emulated Cortex-M55 as Arm compiled it: an inference runner in the package mlia, its code moved into our firmware.

The runner (Apache-2.0, of October 2025, GCC 13.2, for Cortex-M85, whose instructions Cortex-M55 has) holds the interpreter, all kernels with
CMSIS-NN, and its symbols. It is linked for memory that the emulated board lacks, so it is moved: every word of data that is an address in it.
`apps/mcu/tflm_image.c` calls it by address.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from edgekit import resources
from edgekit.errors import MissingPackageError
from edgekit.virtual.cortex_m import elf
from edgekit.virtual.cortex_m.boards import Board
from edgekit.virtual.cortex_m.build import Interpreter, memory

PACKAGE, RELEASE = "mlia", "0.9.2"
INSTALL = f"pip install --no-deps {PACKAGE}=={RELEASE}"
CORE = "cortex-m55"
VERSION = "compiled by Arm, 2025-10"
_FILE = "mlia/resources/backends/applications/inference_runner-sse-320-22.08.02-ethos-U85-Default-noTA/ethos-u-inference_runner.axf"
_SHA256 = "e02668897513891880c041369523cccdfcb5290d54d62ce4ad5ca114f21ca71d"
_LINKED, _MOVED = 0x1200_0000, 0x1100_0000
"""Where it was linked for, and where it goes: the board's block RAM, behind its secure alias, of 2 MiB."""
_INSTEAD = {"_exit": b"\xff\xde", "UartPutc": b"\x70\x47"}
"""Instructions over the image's own: `udf`, so that a failed assertion is told, not waited for; `bx lr`, as nobody takes what a port would send."""
_FUNCTIONS = {
    "RESOLVER": "_ZN3arm3app3fwk4tflm20CreateAllOpsResolverEv",
    "FIND": "_ZNK6tflite22MicroMutableOpResolverILj98EE6FindOpENS_15BuiltinOperatorE",
    "ALLOCATOR": "_ZN6tflite14MicroAllocator6CreateEPhjNS_17MemoryPlannerTypeE",
    "USED": "_ZNK6tflite14MicroAllocator10used_bytesEv",
    "INTERPRETER": (
        "_ZN6tflite16MicroInterpreterC1EPKNS_5ModelERKNS_15MicroOpResolverEPNS_14MicroAllocatorE"
        "PNS_22MicroResourceVariablesEPNS_22MicroProfilerInterfaceE"
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


def interpreter(board: Board, scratch: Path, operators: Sequence[int], variables: int) -> Interpreter:
    """What firmware around the image is compiled from, written into `scratch`, and where it lies.

    `operators`: builtin codes that the model needs, `variables`: how many resource variables it makes. Raises `MissingPackageError`.
    """
    image = path()
    symbols = elf.symbols(image)
    code = _moved(elf.segments(image)[_LINKED], symbols)
    (scratch / "tflm_image.h").write_text(_header(dict(symbols), operators, variables), "ascii")
    (scratch / "tflm_image.bin").write_bytes(code)
    (scratch / "tflm_image.s").write_text(_INCLUDED, "ascii")
    text = memory(board) + _SECTIONS.format(origin=_MOVED, size=-(-len(code) // 16) * 16)
    glue = resources.directory("apps") / "mcu" / "tflm_image.c"
    return Interpreter((f"-I{scratch}", f"-Wa,-I{scratch}", str(scratch / "tflm_image.s"), str(glue)), text, ready_made=True)


def _moved(linked: bytes, symbols: Sequence[tuple[str, int]]) -> bytes:
    """The image's bytes for their new place. `$t` and `$d` say where code and data begin (ELF for the Arm Architecture, mapping symbols)."""
    code, marks = bytearray(linked), sorted((value - _LINKED, name) for name, value in symbols if name in ("$t", "$d"))
    ends = [at for at, _ in marks[1:]] + [len(code)]
    for (start, kind), end in zip(marks, ends, strict=True):
        for at in range(-(-start // 4) * 4, min(end, len(code)) - 3, 4) if kind == "$d" and start >= 0 else ():
            (word,) = struct.unpack_from("<I", code, at)
            if _LINKED <= word < _LINKED + len(code):
                struct.pack_into("<I", code, at, word - _LINKED + _MOVED)
    for name, instruction in _INSTEAD.items():
        at = (dict(symbols)[name] & ~1) - _LINKED
        code[at : at + len(instruction)] = instruction
    return bytes(code)


def _header(symbols: Mapping[str, int], operators: Sequence[int], variables: int) -> str:
    """The header of `tflm_image.c`."""
    lines = [f"#define TFLM_{name} {symbols[symbol] - _LINKED + _MOVED | 1:#x}u" for name, symbol in _FUNCTIONS.items()]  # the lowest bit: Thumb
    lines += [f"#define TFLM_OPERATORS {{{', '.join(map(str, operators))}}}", f"#define TFLM_VARIABLES {variables}"]
    return "\n".join(lines) + "\n"


_INCLUDED = """.section .tflm,"ax"
.incbin "tflm_image.bin"
"""

_SECTIONS = """MEMORY {{ TFLM (rwx) : ORIGIN = {origin:#x}, LENGTH = {size:#x} }}
SECTIONS {{ .tflm : {{ KEEP(*(.tflm)) }} > TFLM }}
"""
