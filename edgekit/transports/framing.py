"""Frames on a byte stream that loses, changes, repeats and invents bytes: the Python side of `apps/mcu/SERIAL.md`."""

from __future__ import annotations

import dataclasses
import struct
import zlib

PAYLOAD_MAX = 256
_HEAD = struct.Struct("<HB")
_CRC = struct.Struct("<I")
_WIRE_MAX = _HEAD.size + PAYLOAD_MAX + _CRC.size + 3


@dataclasses.dataclass(frozen=True)
class Frame:
    """One request or answer: `sequence` is 16 bits wide, `kind` 8, and `payload` has at most `PAYLOAD_MAX` bytes."""

    sequence: int
    kind: int
    payload: bytes = b""


def encode(frame: Frame) -> bytes:
    """The frame's bytes on the wire, with a zero before and after. Raises `ValueError` for a payload over `PAYLOAD_MAX`."""
    if len(frame.payload) > PAYLOAD_MAX:
        raise ValueError(f"a payload of {len(frame.payload)} bytes is over {PAYLOAD_MAX}")
    body = _HEAD.pack(frame.sequence, frame.kind) + frame.payload
    return b"\0" + stuff(body + _CRC.pack(zlib.crc32(body))) + b"\0"


def stuff(data: bytes) -> bytes:
    """COBS (Cheshire and Baker, 1999): the same data without a zero byte, one byte in 254 longer."""
    out = bytearray()
    for run in data.split(b"\0"):
        while len(run) >= 254:
            out += b"\xff" + run[:254]
            run = run[254:]
        out += bytes([len(run) + 1]) + run
    return bytes(out)


def unstuff(data: bytes) -> bytes | None:
    """The data of a COBS block; None when it is malformed."""
    out, at = bytearray(), 0
    while at < len(data):
        code = data[at]
        run = data[at + 1 : at + code]
        if code == 0 or len(run) != code - 1 or 0 in run:
            return None
        at += code
        out += run
        if code < 255 and at < len(data):
            out.append(0)
    return bytes(out)


def decode(block: bytes) -> Frame | None:
    """The frame between two zeros; None when it is not sound."""
    body = unstuff(block) if len(block) <= _WIRE_MAX else None
    if body is None or len(body) < _HEAD.size + _CRC.size:
        return None
    (crc,) = _CRC.unpack(body[-_CRC.size :])
    if zlib.crc32(body[: -_CRC.size]) != crc:
        return None
    sequence, kind = _HEAD.unpack_from(body)
    return Frame(sequence, kind, body[_HEAD.size : -_CRC.size])


class Receiver:
    """Cuts a byte stream into frames and drops what is not sound; memory is bounded whatever comes in."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The sound frames that `data` completes."""
        frames = []
        *blocks, rest = (bytes(self._held) + data).split(b"\0")
        for block in blocks:
            frame = decode(block) if block else None
            if frame is not None:
                frames.append(frame)
        self._held = bytearray(rest[: _WIRE_MAX + 1])
        return frames
