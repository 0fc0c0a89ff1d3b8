"""A stand-in for usbmuxd and one phone behind it: lockdown without TLS, and the Documents of an app over AFC, on a folder of this machine.

Written from the protocols as libimobiledevice and pymobiledevice3 describe them, so that the real client library has something to talk to.
"""

from __future__ import annotations

import plistlib
import socket
import struct
import threading
from pathlib import Path
from typing import Any

UDID = "00008110-0000000000000001"
LOCKDOWN_PORT, AFC_PORT = 62078, 50001
AFC_HEADER = struct.Struct("<8sQQQQ")
MISSING, SUCCESS = 8, 0
READ_DIR, REMOVE, MAKE_DIR, INFO, OPEN, READ, WRITE, CLOSE = 3, 8, 9, 10, 13, 15, 16, 20
STATUS, DATA, OPENED = 1, 2, 14


class Phone:
    """Serves on the Unix socket `address` until `close`. `root` is the app's container; with `bundle` of another name the app is not there."""

    def __init__(self, address: Path, root: Path, bundle: str, *, attached: bool = True, paired: bool = True) -> None:
        self.root, self.bundle, self.attached, self.paired = root, bundle, attached, paired
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(address))
        self._server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                port = self._mux(connection)
                if port == LOCKDOWN_PORT:
                    self._lockdown(connection)
                elif port == AFC_PORT:
                    self._vend(connection)
        except (ConnectionError, struct.error):
            return

    def _mux(self, connection: socket.socket) -> int:
        """usbmuxd's own messages, until one connects to a port of the phone."""
        while True:
            length, version, kind, tag = struct.unpack("<IIII", take(connection, 16))
            asked = plistlib.loads(take(connection, length - 16))
            port = socket.ntohs(asked["PortNumber"]) if asked["MessageType"] == "Connect" else 0
            body = plistlib.dumps(self._muxed(asked))
            connection.sendall(struct.pack("<IIII", 16 + len(body), version, kind, tag) + body)
            if port:
                return port

    def _muxed(self, asked: dict[str, Any]) -> dict[str, Any]:
        match asked["MessageType"]:
            case "ListDevices":
                properties = {"SerialNumber": UDID, "ConnectionType": "USB"}
                return {"DeviceList": [{"MessageType": "Attached", "DeviceID": 1, "Properties": properties}] if self.attached else []}
            case "ReadBUID":
                return {"BUID": "30142955-444094379208051516"}
            case "ReadPairRecord" if self.paired:
                return {"PairRecordData": plistlib.dumps({"HostID": "AAAA", "SystemBUID": "BBBB"})}
            case "ReadPairRecord":
                return {"MessageType": "Result", "Number": 2}
            case _:
                return {"MessageType": "Result", "Number": 0}

    def _lockdown(self, connection: socket.socket) -> None:
        while True:
            asked = take_plist(connection)
            send_plist(connection, {"Request": asked["Request"], **self._locked(asked)})

    def _locked(self, asked: dict[str, Any]) -> dict[str, Any]:
        values = {"UniqueDeviceID": UDID, "ProductType": "iPhone14,2", "ProductVersion": "16.7", "BuildVersion": "20H19", "CPUArchitecture": "arm64e"}
        match asked["Request"]:
            case "QueryType":
                return {"Type": "com.apple.mobile.lockdown"}
            case "GetValue" if asked.get("Key") == "DevicePublicKey":
                return {"Value": PUBLIC_KEY}
            case "GetValue":
                return {"Value": values.get(asked["Key"], "") if "Key" in asked else values}
            case "StartSession":
                return {"SessionID": "1", "EnableSessionSSL": False}
            case "Pair":
                return {"Error": "UserDeniedPairing"}
            case "StartService":
                return {"Service": asked["Service"], "Port": AFC_PORT, "EnableServiceSSL": False}
            case _:
                return {"Result": "Success"}

    def _vend(self, connection: socket.socket) -> None:
        asked = take_plist(connection)
        there = asked["Identifier"] == self.bundle and asked["Command"] == "VendDocuments"
        send_plist(connection, {"Status": "Complete"} if there else {"Error": "ApplicationLookupFailed"})
        handles: dict[int, Any] = {}
        while True:
            _, entire, _, number, operation = AFC_HEADER.unpack(take(connection, AFC_HEADER.size))
            kind, payload = self._filed(operation, take(connection, entire - AFC_HEADER.size), handles)
            size = AFC_HEADER.size + len(payload)
            connection.sendall(AFC_HEADER.pack(b"CFA6LPAA", size, size, number, kind) + payload)

    def _filed(self, operation: int, data: bytes, handles: dict[int, Any]) -> tuple[int, bytes]:
        """One file operation: the kind of answer, and its payload."""
        if operation in (READ, WRITE, CLOSE):
            (handle,) = struct.unpack_from("<Q", data)
            if operation == READ:
                return DATA, handles[handle].read(struct.unpack_from("<Q", data, 8)[0])
            if operation == WRITE:
                handles[handle].write(data[8:])
            else:
                handles.pop(handle).close()
            return STATUS, struct.pack("<Q", SUCCESS)
        path = self._inside(data[8:] if operation == OPEN else data)
        if operation == MAKE_DIR:
            path.mkdir(parents=True, exist_ok=True)
        elif operation == OPEN:
            (mode,) = struct.unpack_from("<Q", data)
            if not (path.is_file() if mode == 1 else path.parent.is_dir()):
                return STATUS, struct.pack("<Q", MISSING)
            handles[len(handles) + 1] = path.open("rb" if mode == 1 else "wb")
            return OPENED, struct.pack("<Q", len(handles))
        elif not path.exists():
            return STATUS, struct.pack("<Q", MISSING)
        elif operation == READ_DIR:
            return DATA, b"".join(name.encode() + b"\0" for name in (".", "..", *(p.name for p in path.iterdir())))
        elif operation == INFO:
            kind = "S_IFLNK" if path.is_symlink() else "S_IFDIR" if path.is_dir() else "S_IFREG"
            rows = {"st_size": self._size(path), "st_blocks": 8, "st_nlink": 1, "st_ifmt": kind, "st_mtime": 0, "st_birthtime": 0}
            return DATA, b"".join(f"{key}\0{value}\0".encode() for key, value in rows.items())
        elif operation == REMOVE:
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()
        return STATUS, struct.pack("<Q", SUCCESS)

    def _size(self, path: Path) -> int:
        return path.lstat().st_size

    def _inside(self, name: bytes) -> Path:
        path = self.root / name.partition(b"\0")[0].decode().lstrip("/")
        assert (path.parent / path.name if path.is_symlink() else path.resolve()).is_relative_to(self.root.resolve() / "Documents"), path
        return path


PUBLIC_KEY = b""


def take(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError
        data += part
    return data


def take_plist(connection: socket.socket) -> dict[str, Any]:
    found: dict[str, Any] = plistlib.loads(take(connection, struct.unpack(">I", take(connection, 4))[0]))
    return found


def send_plist(connection: socket.socket, document: dict[str, Any]) -> None:
    body = plistlib.dumps(document)
    connection.sendall(struct.pack(">I", len(body)) + body)
