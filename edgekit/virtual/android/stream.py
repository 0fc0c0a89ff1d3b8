"""One ADB stream (an OPENed service): bytes both ways, with the protocol's flow control.

The peer may send its next WRTE only after our OKAY, and we ours after its OKAY. An OKAY is held back while the service has not caught up: a
reader thread that blocked there instead would dead-lock the whole link.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from edgekit.virtual.android import wire

_READ_AHEAD_BYTES = 4 * wire.MAX_PAYLOAD_BYTES

Send = Callable[[int, int, int, "bytes | memoryview"], None]


class StreamClosedError(Exception):
    """The peer closed the stream, or the link went away."""


class Stream:
    """The device's end of a stream. `remote` is None until the peer has answered our OPEN."""

    def __init__(self, send: Send, local: int, remote: int | None, max_payload_bytes: int) -> None:
        self.local = local
        self.remote = remote
        self._send = send
        self._max_payload_bytes = max_payload_bytes
        self._incoming = bytearray()
        self._changed = threading.Condition()
        self._ended = False
        self._may_write = remote is not None
        self._owes_okay = False

    def feed(self, payload: bytes | bytearray) -> None:
        """Take a WRTE's payload (called by the link's reader)."""
        with self._changed:
            if self._ended:
                return
            self._incoming += payload
            self._owes_okay = len(self._incoming) > _READ_AHEAD_BYTES
            owes = self._owes_okay
            self._changed.notify_all()
        if not owes:
            self._okay()

    def granted(self, remote: int) -> None:
        """Take an OKAY: the peer has room for one more WRTE."""
        with self._changed:
            self.remote = remote
            self._may_write = True
            self._changed.notify_all()

    def read_exactly(self, count: int) -> bytes:
        """Block for `count` bytes. Raises `StreamClosedError` when the stream ends before."""
        return self._read(count, count)

    def read_some(self, limit: int) -> bytes:
        """Block for 1 to `limit` bytes; empty at the end of the stream."""
        return self._read(1, limit)

    def _read(self, least: int, most: int) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._incoming) >= least)
            if len(self._incoming) < least and (least > 1 or least == most):
                raise StreamClosedError
            with memoryview(self._incoming) as view:
                data = bytes(view[:most])
            del self._incoming[:most]
            pays = self._owes_okay and len(self._incoming) <= _READ_AHEAD_BYTES
            if pays:
                self._owes_okay = False
        if pays:
            self._okay()
        return data

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`, one WRTE for each OKAY. Raises `StreamClosedError`."""
        view = memoryview(data)
        for start in range(0, len(view), self._max_payload_bytes):
            with self._changed:
                self._changed.wait_for(lambda: self._may_write or self._ended)
                if self._ended:
                    raise StreamClosedError
                self._may_write = False
                remote = self.remote or 0
            self._send(wire.WRTE, self.local, remote, view[start : start + self._max_payload_bytes])

    def end(self) -> bool:
        """Wake everything that waits on the stream; whether it was open until now."""
        with self._changed:
            was_open, self._ended = not self._ended, True
            self._changed.notify_all()
        return was_open

    @property
    def ended(self) -> bool:
        """Whether either side has closed."""
        return self._ended

    def wait_ended(self) -> None:
        """Block until the stream ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended)

    def _okay(self) -> None:
        self._send(wire.OKAY, self.local, self.remote or 0, b"")
