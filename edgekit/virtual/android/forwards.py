"""Port forwarding: the host's connections to the device's ports, and reversed, the device's to the host's."""

from __future__ import annotations

import contextlib
import socket
import threading
from functools import partial

from edgekit import decimals
from edgekit.virtual.android.link import Link
from edgekit.virtual.android.stream import Stream, StreamClosedError

_CHUNK_BYTES = 1 << 16
_LOCALHOST = "127.0.0.1"


def connect(argument: str, stream: Stream) -> None:
    """`tcp:PORT`: carry bytes between the stream and a port of the device."""
    with socket.socket() as connection:  # create_connection would look for files outside the device's root
        connection.connect((_LOCALHOST, int(argument.split(":")[0])))
        carry(stream, connection)


def carry(stream: Stream, connection: socket.socket) -> None:
    """Carry bytes both ways until either side ends."""
    upward = threading.Thread(target=_carry_up, args=(stream, connection), daemon=True)
    upward.start()
    with contextlib.suppress(OSError):
        while data := connection.recv(_CHUNK_BYTES):
            stream.write(data)


def reverse(link: Link, argument: str, stream: Stream) -> None:
    """The `reverse:` services: `forward:[norebind:]LOCAL;REMOTE`, `killforward:LOCAL`, `killforward-all`, `list-forward`."""
    operation, _, rest = argument.partition(":")
    reversed_ports = _reversed_ports(link)
    try:
        if operation == "forward":
            stream.write(_add(link, reversed_ports, rest))
        elif operation == "killforward":
            _remove(reversed_ports, rest)
            stream.write(b"OKAY")
        elif operation == "killforward-all":
            _remove_all(reversed_ports)
            stream.write(b"OKAY")
        elif operation == "list-forward":
            stream.write(_block("".join(f"host {local} {remote}\n" for local, (_, remote) in reversed_ports.items())))
        else:
            stream.write(b"FAIL" + _block(f"unknown reverse operation {operation}"))
    except (ValueError, OSError) as error:
        stream.write(b"FAIL" + _block(str(error)))


def _reversed_ports(link: Link) -> dict[str, tuple[socket.socket, str]]:
    if link.reversed_ports is None:
        link.reversed_ports = {}
        link.at_end.append(partial(_remove_all, link.reversed_ports))
    return link.reversed_ports


def _add(link: Link, reversed_ports: dict[str, tuple[socket.socket, str]], rest: str) -> bytes:
    only_new = rest.startswith("norebind:")
    local, separator, remote = rest.removeprefix("norebind:").partition(";")
    kind, _, port = local.partition(":")
    if not separator or kind != "tcp" or not decimals.is_whole(port):
        raise ValueError(f"cannot reverse {rest}: only tcp:PORT;REMOTE")
    if local in reversed_ports:
        if only_new:
            raise ValueError(f"cannot rebind existing socket {local}")
        _remove(reversed_ports, local)
    listener = socket.create_server((_LOCALHOST, int(port)))
    chosen = str(listener.getsockname()[1])
    reversed_ports[f"tcp:{chosen}"] = (listener, remote)
    threading.Thread(target=_listen, args=(link, listener, remote), daemon=True).start()
    return b"OKAY" + (_block(chosen) if port == "0" else b"")


def _remove(reversed_ports: dict[str, tuple[socket.socket, str]], local: str) -> None:
    if local not in reversed_ports:
        raise ValueError(f"listener '{local}' not found")
    listener, _ = reversed_ports.pop(local)
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _remove_all(reversed_ports: dict[str, tuple[socket.socket, str]]) -> None:
    for local in list(reversed_ports):
        _remove(reversed_ports, local)


def _listen(link: Link, listener: socket.socket, remote: str) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_carry_out, args=(link, connection, remote), daemon=True).start()


def _carry_out(link: Link, connection: socket.socket, remote: str) -> None:
    with connection, contextlib.suppress(StreamClosedError):
        stream = link.open(remote)
        try:
            carry(stream, connection)
        finally:
            link.close(stream)


def _carry_up(stream: Stream, connection: socket.socket) -> None:
    try:
        while data := stream.read_some(_CHUNK_BYTES):
            connection.sendall(data)
    except (StreamClosedError, OSError):
        pass
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _block(text: str) -> bytes:
    data = text.encode()
    return b"%04x" % len(data) + data
