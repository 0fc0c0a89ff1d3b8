"""Libraries and archives of libraries, as far as they are measured: ELF sections, and an AAR around them."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path


def elf(machine: int = 183, *, text: int = 5000, debug: int = 0) -> bytes:
    """A 64-bit little-endian library with the sections .text, .debug_info, .symtab and .shstrtab."""
    names = b"\0.text\0.debug_info\0.symtab\0.shstrtab\0"
    code = bytes(range(250)) * (text // 250)
    bodies = [(b".text", code), (b".debug_info", b"d" * debug), (b".symtab", b"s" * (debug // 10)), (b".shstrtab", names)]
    body, headers = b"", struct.pack("<IIQQQQIIQQ", *[0] * 10)
    for name, data in bodies:
        headers += struct.pack("<IIQQQQIIQQ", names.index(b"\0" + name + b"\0") + 1, 1, 0, 0, 64 + len(body), len(data), 0, 0, 1, 0)
        body += data
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    return ident + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 5, 4) + body + headers


def aar(path: Path, **libraries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("classes.jar", b"PK" + bytes(100))
        for abi, data in libraries.items():
            archive.writestr(f"jni/{abi.replace('_v8a', '-v8a')}/libfoo.so", data)
    return path
