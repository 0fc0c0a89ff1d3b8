"""One TCP connection from an adb server: the handshake and the streams that run over it."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgekit.virtual.android import wire
from edgekit.virtual.android.stream import Stream, StreamClosedError

if TYPE_CHECKING:
    from edgekit.virtual.android.device import Device

_TOKEN_BYTES = 20


class Link:
    """The device's side of one connection. Everything on it ends when it is cut."""

    def __init__(self, device: Device, connection: socket.socket) -> None:
        self.device = device
        self.streams: dict[int, Stream] = {}
        self.at_end: list[Callable[[], None]] = []
        self.reversed_ports: dict[str, tuple[socket.socket, str]] | None = None
        self._connection = connection
        self._ids = itertools.count(1)
        self._sending = threading.Lock()
        self._cut = threading.Event()
        self._silent_until = 0.0
        self._payload_limit = 4096
        self._accepted = False
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def serve(self) -> None:
        """Answer packets until the connection ends."""
        header = bytearray(wire.HEADER_BYTES)
        try:
            while True:
                self._receive(memoryview(header))
                packet = wire.decode_header(header)
                payload = bytearray(packet.payload_bytes)
                self._receive(memoryview(payload))
                self._stay_silent()
                self.device.pace(packet.payload_bytes)
                self._answer(packet, payload)
        except (StreamClosedError, OSError, wire.ProtocolError, UnicodeDecodeError):
            pass
        finally:
            self.cut()

    def send(self, command: int, arg0: int, arg1: int, payload: bytes | memoryview = b"") -> None:
        """Send one packet. Raises `StreamClosedError` when the link is gone."""
        self._stay_silent()
        self.device.pace(len(payload))
        header = wire.encode_header(command, arg0, arg1, payload)
        with self._sending:
            try:
                sent = self._connection.sendmsg([header, payload])
                if sent < len(header) + len(payload):
                    self._connection.sendall((header + bytes(payload))[sent:])
            except OSError as error:
                raise StreamClosedError from error

    def open(self, destination: str) -> Stream:
        """Open a stream on the host (for a reversed port)."""
        stream = self._stream(None)
        self.send(wire.OPEN, stream.local, 0, destination.encode() + b"\0")
        return stream

    def close(self, stream: Stream) -> None:
        """Close one stream and tell the host."""
        self.streams.pop(stream.local, None)
        if stream.end():
            with contextlib.suppress(StreamClosedError):
                self.send(wire.CLSE, stream.local, stream.remote or 0)

    def hang(self, lasts_s: float | None) -> None:
        """Stop answering, but stay connected."""
        self._silent_until = time.monotonic() + (lasts_s if lasts_s is not None else float("inf"))

    def cut(self) -> None:
        """End the connection, its streams and what runs for them."""
        if self._cut.is_set():
            return
        self._cut.set()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        for stream in list(self.streams.values()):
            stream.end()
        for action in list(self.at_end):
            action()
        self.device.forget(self)

    def _receive(self, view: memoryview) -> None:
        while view:
            count = self._connection.recv_into(view)
            if not count:
                raise StreamClosedError
            view = view[count:]

    def _stay_silent(self) -> None:
        while (left_s := self._silent_until - time.monotonic()) > 0:
            if self._cut.wait(min(left_s, 0.05)):
                raise StreamClosedError
            if self._silent_until == float("inf") and self._peer_left():
                raise StreamClosedError

    def _peer_left(self) -> bool:
        try:
            return self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False

    def _answer(self, packet: wire.Header, payload: bytearray) -> None:
        wire.verify(packet, payload)
        if packet.command == wire.CNXN:
            self._payload_limit = min(packet.arg1, wire.MAX_PAYLOAD_BYTES)
            self._greet()
        elif packet.command == wire.AUTH:
            self._judge_key(packet.arg0)
        elif not self._accepted:
            raise wire.ProtocolError("a packet before the handshake")
        elif packet.command == wire.OPEN:
            self._accept(packet.arg0, bytes(payload).rstrip(b"\0").decode())
        else:
            self._pass_on(packet, payload)

    def _greet(self) -> None:
        fault = self.device.armed.due("connect", "connect", 0)
        if fault:
            self.device.suffer(fault, self)
            self._stay_silent()
        if self.device.armed.faults.unauthorized or self.device.options.accept_any_key:
            self.send(wire.AUTH, wire.AUTH_TOKEN, 0, os.urandom(_TOKEN_BYTES))
        else:
            self._welcome()

    def _judge_key(self, kind: int) -> None:
        if not self.device.armed.faults.unauthorized:
            self._welcome()
        elif kind == wire.AUTH_SIGNATURE:
            self.send(wire.AUTH, wire.AUTH_TOKEN, 0, os.urandom(_TOKEN_BYTES))
        else:  # a public key: a phone would now ask its owner, who says nothing
            self.at_end.append(lambda: self.device.lift("unauthorized"))

    def _welcome(self) -> None:
        self._accepted = True
        self.send(wire.CNXN, wire.VERSION, wire.MAX_PAYLOAD_BYTES, self.device.banner().encode())

    def _pass_on(self, packet: wire.Header, payload: bytearray) -> None:
        stream = self.streams.get(packet.arg1)
        if stream is None:
            if packet.command == wire.WRTE:
                self.send(wire.CLSE, 0, packet.arg0)
        elif packet.command == wire.WRTE:
            stream.feed(payload)
        elif packet.command == wire.OKAY:
            stream.granted(packet.arg0)
        else:
            self.streams.pop(packet.arg1, None)
            stream.end()

    def _accept(self, remote: int, destination: str) -> None:
        service = self.device.service(self, destination)
        if service is None:
            self.send(wire.CLSE, 0, remote)
            return
        stream = self._stream(remote)
        self.send(wire.OKAY, stream.local, remote)
        threading.Thread(target=self._run, args=(service, stream), daemon=True).start()

    def _run(self, service: Callable[[Stream], None], stream: Stream) -> None:
        try:
            service(stream)
        except (StreamClosedError, OSError, struct.error, UnicodeDecodeError):
            pass
        finally:
            self.close(stream)

    def _stream(self, remote: int | None) -> Stream:
        stream = Stream(self.send, next(self._ids), remote, self._payload_limit)
        self.streams[stream.local] = stream
        return stream
