"""The emulated boards: one for each core. Memory maps are those of QEMU's models of Arm's MPS2 and MPS3 boards."""

from __future__ import annotations

import dataclasses
import shutil

from edgekit.errors import MissingPackageError


@dataclasses.dataclass(frozen=True)
class Region:
    """A piece of the address space."""

    origin: int
    size_bytes: int


@dataclasses.dataclass(frozen=True)
class Board:
    """One emulated board: its machine in QEMU, compiler flags for its core, and where code, constants and data live."""

    core: str
    machine: str
    abi: str
    flags: tuple[str, ...]
    code: Region
    weights: Region
    ram: Region
    options: tuple[str, ...] = ()

    @property
    def flash_bytes(self) -> int:
        """Memory for code and constants."""
        return self.code.size_bytes + (self.weights.size_bytes if self.weights != self.code else 0)


_MIB = 1 << 20
_CODE, _RAM = Region(0, 4 * _MIB), Region(0x2000_0000, 4 * _MIB)
# behind the memory protection controllers only secure aliases are open after reset
_M33_CODE, _M33_RAM = Region(0x1000_0000, 4 * _MIB), Region(0x3800_0000, 4 * _MIB)

_NRF51 = tuple(part for name in ("flash", "sram") for part in ("-global", f"nrf51-soc.{name}-size={4 * _MIB}"))

BOARDS = {
    board.core: board
    for board in (
        # the chip has 256 KiB and 16 KiB: QEMU gives its model of it as much as the other boards have
        Board("cortex-m0", "microbit", "thumbv6m", ("-mcpu=cortex-m0", "-mfloat-abi=soft"), _CODE, _CODE, _RAM, _NRF51),
        Board("cortex-m3", "mps2-an385", "thumbv7m", ("-mcpu=cortex-m3", "-mfloat-abi=soft"), _CODE, _CODE, _RAM),
        Board("cortex-m4", "mps2-an386", "thumbv7em", ("-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"), _CODE, _CODE, _RAM),
        Board("cortex-m7", "mps2-an500", "thumbv7em", ("-mcpu=cortex-m7", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"), _CODE, _CODE, _RAM),
        Board(
            "cortex-m33", "mps2-an505", "thumbv8m.main", ("-mcpu=cortex-m33", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"), _M33_CODE, _M33_CODE, _M33_RAM
        ),
        Board(
            "cortex-m55",
            "mps3-an547",
            "thumbv8.1m.main",
            ("-mcpu=cortex-m55", "-mfloat-abi=hard"),
            Region(0, _MIB // 2),
            Region(0x3800_0000, 8 * _MIB),
            Region(0x3100_0000, 4 * _MIB),
        ),
    )
}
"""Core -> its board."""

EMULATED = {"cortex-m0plus": "cortex-m0"}
"""Core -> the one that stands for it, where QEMU has none: the same instructions."""

PROGRAMS = {"arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi", "qemu-system-arm": "qemu-system-arm"}
"""What building and running firmware needs: program -> the Debian packages that hold it."""


CXX = {"arm-none-eabi-g++": "gcc-arm-none-eabi libstdc++-arm-none-eabi-newlib"}
"""What firmware with TensorFlow Lite Micro needs besides."""


def program(name: str) -> str:
    """The path of one of `PROGRAMS` or `CXX`. Raises `MissingPackageError`."""
    found = shutil.which(name)
    if found is None:
        raise MissingPackageError(f"{name} was not found on PATH", f"apt-get install {(PROGRAMS | CXX)[name]}")
    return found
