"""ADB transport packets: a 24-byte little-endian header and a payload.

Source of the layout: Android platform documentation, `packages/modules/adb/protocol.txt`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

VERSION = 0x01000001  # from this version on, only CNXN and AUTH carry a checksum
MAX_PAYLOAD_BYTES = 1 << 20

CNXN, AUTH, OPEN, OKAY, CLSE, WRTE = (int.from_bytes(name, "little") for name in (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"CLSE", b"WRTE"))
_CHECKED = frozenset((CNXN, AUTH))
_COMMANDS = frozenset((CNXN, AUTH, OPEN, OKAY, CLSE, WRTE))

AUTH_TOKEN, AUTH_SIGNATURE, AUTH_PUBLIC_KEY = 1, 2, 3

_HEADER = struct.Struct("<6I")
HEADER_BYTES = _HEADER.size


class ProtocolError(Exception):
    """The peer sent something that is not an ADB packet."""


class Header(NamedTuple):
    """A packet without its payload."""

    command: int
    arg0: int
    arg1: int
    payload_bytes: int
    checksum: int


def checksum(payload: bytes | bytearray | memoryview) -> int:
    """The sum of the payload's bytes, modulo 2**32."""
    return sum(payload) & 0xFFFFFFFF


def encode_header(command: int, arg0: int, arg1: int, payload: bytes | bytearray | memoryview = b"") -> bytes:
    """The 24 bytes that precede `payload`."""
    total = checksum(payload) if command in _CHECKED else 0
    return _HEADER.pack(command, arg0, arg1, len(payload), total, command ^ 0xFFFFFFFF)


def decode_header(data: bytes | bytearray | memoryview) -> Header:
    """Read 24 bytes. Raises `ProtocolError` for an unknown command, a wrong magic word or a payload over 1 MiB."""
    command, arg0, arg1, payload_bytes, total, magic = _HEADER.unpack(data)
    if command not in _COMMANDS or command ^ 0xFFFFFFFF != magic:
        raise ProtocolError(f"not an ADB packet: command {command:#010x}, magic {magic:#010x}")
    if payload_bytes > MAX_PAYLOAD_BYTES:
        raise ProtocolError(f"a payload of {payload_bytes} bytes is over the limit of {MAX_PAYLOAD_BYTES}")
    return Header(command, arg0, arg1, payload_bytes, total)


def verify(header: Header, payload: bytes | bytearray | memoryview) -> None:
    """Check the checksum where the protocol asks for one. Raises `ProtocolError`."""
    if header.command in _CHECKED and header.checksum and header.checksum != checksum(payload):
        raise ProtocolError(f"checksum {header.checksum:#x} does not match the payload's {checksum(payload):#x}")
