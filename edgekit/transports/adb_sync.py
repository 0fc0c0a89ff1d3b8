"""Files over adb: the sync service's SEND and RECV, with the device's own error text kept and the link kept full.

Numbers are little-endian: a request is an id of four letters, a length and a path; content travels as `DATA` packets of at most 64 KiB.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

PACKET_BYTES = 64 << 10
_WINDOW_PACKETS = 16
_RECEIVE_BYTES = 2 << 20
# What sockets and the adb server may hold when all is sent, and the slowest link that is worth waiting for.
_QUEUED_BYTES, _SLOWEST_BYTES_PER_S = 16 << 20, 500e3
_DATA = struct.pack("<4sI", b"DATA", PACKET_BYTES)


class SyncFailedError(Exception):
    """The device answered FAIL, with this text."""


class TooLargeError(Exception):
    """More came than was allowed."""


def send_file(channel: socket.socket, path: Path, remote: str, mode: int) -> None:
    """Write a local file to `remote` with mode bits.

    Raises `SyncFailedError` with the device's text, `EOFError` or `OSError` when the link breaks.
    """
    silence_s = channel.gettimeout()
    _request(channel, b"SEND", f"{remote},{0o100000 | mode}")
    buffer = bytearray(_WINDOW_PACKETS * PACKET_BYTES)
    try:
        with path.open("rb") as file:
            while size := _fill(file, buffer):
                _send_packets(channel, memoryview(buffer)[:size])
                if select.select([channel], [], [], 0)[0]:
                    break
        channel.sendall(struct.pack("<4sI", b"DONE", int(path.stat().st_mtime) & 0xFFFFFFFF))
        _wait_longer(channel, path.stat().st_size)
    except (BrokenPipeError, ConnectionResetError):
        _expect_okay(channel)
        raise
    _expect_okay(channel)
    channel.settimeout(silence_s)


def receive_file(channel: socket.socket, remote: str, path: Path, limit_bytes: int) -> int:
    """Read `remote` into a local file of at most `limit_bytes`; returns its size.

    Raises `SyncFailedError`, `TooLargeError`, `EOFError` or `OSError`.
    """
    _request(channel, b"RECV", remote)
    _acknowledge_at_once(channel)
    total = 0
    with path.open("wb", buffering=0) as file:
        for data in _content(channel):
            total += len(data)
            if total > limit_bytes:
                raise TooLargeError(remote)
            while data:
                data = data[file.write(data) :]
    return total


def _content(channel: socket.socket) -> Iterator[memoryview]:
    """The content of DATA packets as it comes, until DONE: views of one buffer, each good until the next is asked for."""
    buffer = memoryview(bytearray(_RECEIVE_BYTES))
    start = end = left = 0  # what is in the buffer, and how much of the packet begun is still to come
    while True:
        if end - start < (1 if left else 8):
            buffer[: end - start] = buffer[start:end]
            start, end = 0, end - start
            got = channel.recv_into(buffer[end:])
            if not got:
                raise EOFError("the link closed")
            end += got
        elif left:
            data = buffer[start : min(end, start + left)]
            start, left = start + len(data), left - len(data)
            yield data
        else:
            kind, size = struct.unpack_from("<4sI", buffer, start)
            start += 8
            if kind == b"DONE":
                return
            if kind == b"FAIL":
                raise SyncFailedError(_rest(channel, bytes(buffer[start:end]), min(size, PACKET_BYTES)))
            if kind != b"DATA" or size > PACKET_BYTES:
                raise EOFError(f"a sync packet {kind!r} of {size} bytes")
            left = size


def _rest(channel: socket.socket, begun: bytes, size: int) -> str:
    whole = begun + _read(channel, size - len(begun)) if len(begun) < size else begun[:size]
    return whole.decode("utf-8", "replace")


def _request(channel: socket.socket, kind: bytes, path: str) -> None:
    raw = path.encode()
    channel.sendall(struct.pack("<4sI", kind, len(raw)) + raw)


def _acknowledge_at_once(channel: socket.socket) -> None:
    """The adb server writes header and content apart, and would wait 40 ms for a delayed acknowledgement. Linux forgets the option soon."""
    if channel.family != getattr(socket, "AF_UNIX", None) and hasattr(socket, "TCP_QUICKACK"):
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _wait_longer(channel: socket.socket, size_bytes: int) -> None:
    silence_s = channel.gettimeout()
    if silence_s is not None:
        channel.settimeout(silence_s + min(size_bytes, _QUEUED_BYTES) / _SLOWEST_BYTES_PER_S)


def _fill(file: BinaryIO, buffer: bytearray) -> int:
    """Read as much as the file has and the buffer holds."""
    view, total = memoryview(buffer), 0
    while total < len(view):
        got = file.readinto(view[total:])  # type: ignore[attr-defined]  # BinaryIO leaves out readinto, which binary files have
        if not got:
            break
        total += got
    return total


def _send_packets(channel: socket.socket, data: memoryview) -> None:
    """Send data as DATA packets in one system call where the socket takes it all."""
    parts: list[bytes | memoryview] = []
    for start in range(0, len(data), PACKET_BYTES):
        chunk = data[start : start + PACKET_BYTES]
        parts += [_DATA if len(chunk) == PACKET_BYTES else struct.pack("<4sI", b"DATA", len(chunk)), chunk]
    _send_all(channel, parts)


def _send_all(channel: socket.socket, parts: Iterable[bytes | memoryview]) -> None:
    rest = [memoryview(part) for part in parts]
    while rest:
        sent = channel.sendmsg(rest)
        while rest and sent >= len(rest[0]):
            sent -= len(rest.pop(0))
        if rest:
            rest[0] = rest[0][sent:]


def _expect_okay(channel: socket.socket) -> None:
    header = _read(channel, 8)
    kind, size = struct.unpack("<4sI", header)
    if kind == b"FAIL":
        raise SyncFailedError(_read(channel, min(size, PACKET_BYTES)).decode("utf-8", "replace"))
    if kind != b"OKAY":
        raise EOFError(f"the device answered {kind!r}")


def _read(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = channel.recv(size - len(data))
        if not chunk:
            raise EOFError("the link closed")
        data += chunk
    return bytes(data)
