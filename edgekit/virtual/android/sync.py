"""The `sync:` service: stat, list, push and pull in versions 1 and 2.

Source of the layout: Android platform sources, `packages/modules/adb/SYNC.TXT` and `file_sync_protocol.h`. Paths are those of the device;
this process has made the device's root its own, so that no path or symbolic link leads out of it.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import struct
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit import decimals
from edgekit.virtual.android.link import Link
from edgekit.virtual.android.stream import Stream

if TYPE_CHECKING:
    from edgekit.virtual.android.device import Device

REQUEST = struct.Struct("<4sI")
STAT_V1 = struct.Struct("<III")
STAT_V2 = struct.Struct("<IQQIIIIQqqq")
CHUNK_BYTES = 1 << 16

_MAX_PATH_BYTES = 1024
_SEND_V2 = struct.Struct("<4sII")
_CHUNKS_IN_PACKET = 15  # of 64 KiB and a header each: the most that fits in one packet of 1 MiB


def serve(device: Device, link: Link, stream: Stream) -> None:
    """Answer requests until the client quits."""
    while True:
        name, size = REQUEST.unpack(stream.read_exactly(REQUEST.size))
        if name == b"QUIT":
            return
        if size > _MAX_PATH_BYTES:
            _fail(stream, "path too long")
            return
        path = os.fsdecode(stream.read_exactly(size))
        if name in (b"STAT", b"LST2", b"STA2"):
            stream.write(name + _stat(path, name))
        elif name in (b"LIST", b"LIS2"):
            stream.write(_list(path, name == b"LIS2"))
        elif name in (b"SEND", b"SND2"):
            _receive(device, link, stream, path, version_2=name == b"SND2")
        elif name in (b"RECV", b"RCV2"):
            if name == b"RCV2":
                stream.read_exactly(REQUEST.size)
            _send(device, link, stream, path)
        else:
            _fail(stream, f"unknown command {name!r}")
            return


def _on_device(path: str, *, follow: bool = True) -> Path:
    """The path without links: those of /proc/self/fd and the like would lead to this process's own files."""
    whole = Path("/") / path
    return Path(os.path.realpath(whole)) if follow else Path(os.path.realpath(whole.parent)) / whole.name


def _stat(path: str, name: bytes) -> bytes:
    try:
        found = _on_device(path, follow=name == b"STA2").lstat()
    except (OSError, ValueError) as error:
        number = error.errno or 0 if isinstance(error, OSError) else 22
        return bytes(STAT_V1.size) if name == b"STAT" else struct.pack("<I", number) + bytes(STAT_V2.size - 4)
    return _stat_v1(found) if name == b"STAT" else _stat_v2(found)


def _stat_v1(found: os.stat_result) -> bytes:
    return STAT_V1.pack(found.st_mode, found.st_size & 0xFFFFFFFF, int(found.st_mtime) & 0xFFFFFFFF)


def _stat_v2(found: os.stat_result) -> bytes:
    owner = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid, found.st_size)
    return STAT_V2.pack(0, found.st_dev, found.st_ino, *owner, int(found.st_atime), int(found.st_mtime), int(found.st_ctime))


def _list(path: str, version_2: bool) -> bytes:
    entries = bytearray()
    with contextlib.suppress(OSError, ValueError):
        folder = _on_device(path)
        for name in [".", "..", *sorted(entry.name for entry in folder.iterdir())]:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(folder / name)
                raw = os.fsencode(name)
                entries += (b"DNT2" + _stat_v2(found) if version_2 else b"DENT" + _stat_v1(found)) + struct.pack("<I", len(raw)) + raw
    return bytes(entries) + b"DONE" + bytes((STAT_V2.size if version_2 else STAT_V1.size) + 4)


def _receive(device: Device, link: Link, stream: Stream, path: str, *, version_2: bool) -> None:
    """A push: create the file, write what comes, answer OKAY or FAIL. After a failure the rest is read and dropped, as adbd does."""
    if version_2:
        _, mode, flags = _SEND_V2.unpack(stream.read_exactly(_SEND_V2.size))
    else:
        path, _, digits = path.rpartition(",")
        mode, flags = int(digits) if decimals.is_whole(digits) else 0o644, 0
    failure = "compression is not supported" if flags & ~0x80000000 else ""
    if stat.S_ISLNK(mode):
        failure = _receive_symlink(stream, path)
    elif not failure:
        failure = _receive_file(device, link, stream, path, mode)
    if failure:
        _fail(stream, failure)
        if not stat.S_ISLNK(mode):
            _skip_data(stream)
        device.lift(failure)
    else:
        stream.write(REQUEST.pack(b"OKAY", 0))


def _receive_file(device: Device, link: Link, stream: Stream, path: str, mode: int) -> str:
    refusal = device.check("push", path, link)
    if refusal:
        return refusal.text
    try:
        target, moved = _on_device(path), 0
        file = _create(target, mode)
    except (OSError, ValueError) as error:
        return f"couldn't create file: {_reason(error)}"
    try:
        while (header := REQUEST.unpack(stream.read_exactly(REQUEST.size)))[0] == b"DATA":
            data = memoryview(stream.read_exactly(_checked_size(header[1])))
            if fault := device.move("push", path, link, moved, data, partial(_write_all, file)):
                raise OSError(0, fault.text)
            moved += len(data)
        with contextlib.suppress(OSError):
            os.utime(file, (header[1], header[1]))
    except OSError as error:
        with contextlib.suppress(OSError):
            target.unlink()
        return f"write failed: {_reason(error)}"
    finally:
        os.close(file)
    return ""


def _create(target: Path, mode: int) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file():
        target.unlink()  # a program that runs keeps its old file
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.fchmod(file, (mode & 0o777) | 0o600)
    return file


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def _checked_size(size: int) -> int:
    if size > CHUNK_BYTES:
        raise OSError(0, f"oversize data message of {size} bytes")
    return size


def _receive_symlink(stream: Stream, path: str) -> str:
    text = bytearray()
    while (header := REQUEST.unpack(stream.read_exactly(REQUEST.size)))[0] == b"DATA":
        text += stream.read_exactly(_checked_size(header[1]))
    try:
        target = _on_device(path, follow=False)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(os.fsdecode(bytes(text).rstrip(b"\0")))
    except (OSError, ValueError) as error:
        return f"couldn't create symlink: {_reason(error)}"
    return ""


def _skip_data(stream: Stream) -> None:
    while (header := REQUEST.unpack(stream.read_exactly(REQUEST.size)))[0] == b"DATA":
        stream.read_exactly(_checked_size(header[1]))


def _send(device: Device, link: Link, stream: Stream, path: str) -> None:
    """A pull: the file in chunks of 64 KiB, as many in a packet as fit."""
    refusal = device.check("pull", path, link)
    try:
        if refusal:
            raise OSError(0, refusal.text)
        with _on_device(path).open("rb", buffering=0) as file:
            buffer = memoryview(bytearray(_CHUNKS_IN_PACKET * (REQUEST.size + CHUNK_BYTES)))
            moved = 0
            while filled := _fill(file, buffer):
                if fault := device.move("pull", path, link, moved, buffer[:filled], stream.write):
                    raise OSError(0, fault.text)
                moved += filled
    except (OSError, ValueError) as error:
        _fail(stream, f"read failed: {_reason(error)}")
        return
    stream.write(REQUEST.pack(b"DONE", 0))


def _fill(file: io.FileIO, buffer: memoryview) -> int:
    filled = 0
    while filled < len(buffer):
        count = file.readinto(buffer[filled + REQUEST.size : filled + REQUEST.size + CHUNK_BYTES])
        if not count:
            break
        REQUEST.pack_into(buffer, filled, b"DATA", count)
        filled += REQUEST.size + count
    return filled


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _fail(stream: Stream, text: str) -> None:
    data = text.encode(errors="replace")
    stream.write(REQUEST.pack(b"FAIL", len(data)) + data)
