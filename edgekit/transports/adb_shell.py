"""Commands over adb: the shell service's version 2, which keeps exit code, stdout and stderr apart and tells a broken link from an end."""

from __future__ import annotations

import socket
import struct
import time

from edgekit import interruption
from edgekit.transports.staged import Completed

STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)
KEPT_BYTES = 4 << 20
_PACKET_BYTES = 32 << 10


def converse(channel: socket.socket, stdin: bytes, timeout_s: float) -> Completed:
    """Talk to an opened `shell,v2` service until its command ends; the last 4 MiB of each stream are kept.

    Raises `TimeoutError` when it has not ended after `timeout_s`, `EOFError` or `OSError` when the link breaks.
    """
    deadline = time.monotonic() + timeout_s
    for start in range(0, len(stdin), _PACKET_BYTES):
        channel.sendall(_packet(STDIN, stdin[start : start + _PACKET_BYTES]))
    channel.sendall(_packet(CLOSE_STDIN, b""))
    kept = {STDOUT: bytearray(), STDERR: bytearray()}
    while True:
        kind, size = struct.unpack("<BI", _read(channel, 5, deadline))
        data = _read(channel, size, deadline)
        if kind == EXIT:
            out, err = (bytes(kept[stream]).decode("utf-8", "replace") for stream in (STDOUT, STDERR))
            return Completed(data[0] if data else 255, out, err)
        if kind in kept:
            kept[kind] += data
            del kept[kind][:-KEPT_BYTES]


def _packet(kind: int, data: bytes) -> bytes:
    return struct.pack("<BI", kind, len(data)) + data


def _read(channel: socket.socket, size: int, deadline: float) -> bytes:
    if size > KEPT_BYTES:
        raise EOFError(f"a shell packet of {size} bytes")
    data = bytearray()
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        channel.settimeout(min(left, interruption.SLICE_S))
        try:
            chunk = channel.recv(size - len(data))
        except TimeoutError:
            interruption.check()
            continue
        if not chunk:
            raise EOFError("the link closed")
        data += chunk
    return bytes(data)
