"""The parts of the virtual Android device that need no emulator: packets, streams, faults, stories, the processor's description."""

from __future__ import annotations

import shutil
import socket
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import MissingPackageError, UsageError
from edgekit.virtual import android
from edgekit.virtual.android import Fault, Faults, binfmt, rootfs, shell, story, sync, userland, wire
from edgekit.virtual.android.faults import Armed
from edgekit.virtual.android.options import DeviceOptions, properties
from edgekit.virtual.android.stream import Stream, StreamClosedError

WORDS = st.integers(0, 2**32 - 1)
COMMANDS = st.sampled_from([wire.CNXN, wire.AUTH, wire.OPEN, wire.OKAY, wire.CLSE, wire.WRTE])
STORIES = st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 10**6)), min_size=1, max_size=6, unique_by=lambda point: point[0]).map(
    lambda points: tuple(sorted(points))
)


@given(COMMANDS, WORDS, WORDS, st.binary(max_size=300))
def test_packets_survive_the_wire(command: int, arg0: int, arg1: int, payload: bytes) -> None:
    header = wire.decode_header(wire.encode_header(command, arg0, arg1, payload))
    assert header[:4] == (command, arg0, arg1, len(payload))
    wire.verify(header, payload)


@given(st.binary(min_size=24, max_size=24))
def test_bytes_that_are_no_packet_are_refused(data: bytes) -> None:
    command, *_, size, _, magic = struct.unpack("<6I", data)
    genuine = data[:4] in (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"CLSE", b"WRTE") and magic == command ^ 0xFFFFFFFF and size <= 1 << 20
    if genuine:
        wire.decode_header(data)
    else:
        with pytest.raises(wire.ProtocolError):
            wire.decode_header(data)


def test_a_known_packet_has_the_documented_bytes() -> None:
    # OKAY(1, 2): the magic word is the command with every bit inverted
    assert wire.encode_header(wire.OKAY, 1, 2).hex() == "4f4b4159" + "01000000" + "02000000" + "00" * 8 + "b0b4bea6"
    assert struct.unpack("<6I", wire.encode_header(wire.CNXN, 0, 0, b"\x01\xff"))[4] == 0x100


@given(st.binary(min_size=1, max_size=100), st.integers(0, 99))
def test_a_handshake_damaged_on_the_way_is_refused(payload: bytes, position: int) -> None:
    header = wire.decode_header(wire.encode_header(wire.CNXN, 0, 0, payload))
    damaged = bytearray(payload)
    damaged[position % len(payload)] ^= 1
    if header.checksum:
        with pytest.raises(wire.ProtocolError, match="checksum"):
            wire.verify(header, damaged)


def test_a_payload_over_the_limit_is_refused() -> None:
    with pytest.raises(wire.ProtocolError, match="over the limit"):
        wire.decode_header(struct.pack("<6I", wire.WRTE, 0, 0, (1 << 20) + 1, 0, wire.WRTE ^ 0xFFFFFFFF))


Sent = list[tuple[int, int, int, bytes]]


def _stream(limit_bytes: int = 10) -> tuple[Stream, Sent]:
    sent: Sent = []
    return Stream(lambda command, arg0, arg1, payload: sent.append((command, arg0, arg1, bytes(payload))), 5, 7, limit_bytes), sent


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.data())
def test_a_stream_gives_the_bytes_in_order_however_they_are_cut(pieces: list[bytes], data: st.DataObject) -> None:
    stream, sent = _stream()
    for piece in pieces:
        stream.feed(piece)
    assert sent == [(wire.OKAY, 5, 7, b"")] * len(pieces)
    whole, got = b"".join(pieces), b""
    while len(got) < len(whole):
        got += stream.read_exactly(data.draw(st.integers(1, len(whole) - len(got))))
    assert got == whole
    stream.end()
    assert stream.read_some(10) == b""
    with pytest.raises(StreamClosedError):
        stream.read_exactly(2)


def test_a_reader_that_lags_holds_back_the_okay() -> None:
    stream, sent = _stream()
    for _ in range(5):
        stream.feed(bytes(wire.MAX_PAYLOAD_BYTES))
    assert len(sent) == 4
    stream.read_exactly(wire.MAX_PAYLOAD_BYTES)
    assert len(sent) == 5


def test_one_write_is_sent_for_each_okay() -> None:
    stream, sent = _stream()
    writer = threading.Thread(target=stream.write, args=(b"0123456789abcde",))
    writer.start()
    writer.join(0.05)
    assert sent == [(wire.WRTE, 5, 7, b"0123456789")]
    stream.granted(7)
    writer.join(5)
    assert sent[1:] == [(wire.WRTE, 5, 7, b"abcde")]
    stream.end()
    with pytest.raises(StreamClosedError):
        stream.write(b"late")


@given(st.integers(0, 255), st.integers(1, 64))
def test_exit_codes_follow_the_shell(code: int, number: int) -> None:
    assert shell.exit_code(code) == code
    assert shell.exit_code(-number) == 128 + number


def test_sync_structures_have_the_sizes_of_the_protocol() -> None:
    assert (sync.REQUEST.size, sync.STAT_V1.size, sync.STAT_V2.size) == (8, 12, 68)


def test_an_event_happens_once_at_its_byte_and_only_where_it_matches() -> None:
    armed = Armed(Faults(events=(Fault("push", "drop", match="model", after_bytes=100), Fault("run", "kill", after_s=0.5, times=2))))
    assert armed.due("push", "/data/other", 500) is None
    assert armed.due("pull", "/data/model", 500) is None
    assert armed.due("push", "/data/model", 99) is None
    assert armed.due("push", "/data/model", 100) is not None
    assert armed.due("push", "/data/model", 100) is None
    assert armed.due("run", "sleep", 10**9) is None
    for _ in range(2):
        assert armed.delay_s("run", "sleep") == 0.5
        assert armed.due_now("run", "sleep") is not None
    assert armed.delay_s("run", "sleep") is None
    assert armed.fired == ["drop at push: /data/model", "kill at run: sleep", "kill at run: sleep"]


def test_a_one_shot_fault_is_lifted_by_its_own_symptom() -> None:
    armed = Armed(Faults(free_bytes=10, read_only=True, one_shot=True))
    assert not armed.lift("something else")
    assert armed.lift("write failed: No space left on device")
    assert (armed.faults.free_bytes, armed.faults.read_only) == (None, True)
    lasting = Armed(Faults(free_bytes=10))
    assert not lasting.lift("write failed: No space left on device")
    assert lasting.faults.free_bytes == 10


@given(STORIES, st.floats(0, 2e6))
def test_stories_pass_through_their_points_and_stay_between_them(points: tuple[tuple[float, int], ...], at_s: float) -> None:
    values = [value for _, value in points]
    for second, value in points:
        assert story.held(points, second) == value
        assert story.interpolated(points, second) == value
    assert min(values) <= story.interpolated(points, at_s) <= max(values)
    assert story.held(points, at_s) in values


def test_a_story_is_interpolated_or_held() -> None:
    points = ((1.0, 100), (3.0, 300))
    assert [story.interpolated(points, at) for at in (0, 1, 2, 3, 9)] == [100, 100, 200, 300, 300]
    assert [story.held(points, at) for at in (0, 1, 2, 3, 9)] == [100, 100, 100, 300, 300]


def test_a_clock_story_caps_every_core() -> None:
    now = story.readings(Faults(clock_khz=((0, 2_000_000),)), 1.0, (1_800_000, 2_400_000))
    clocks = [value for name, value in sorted(now.items()) if name.endswith("scaling_cur_freq")]
    assert clocks == [1_800_000, 2_000_000]


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_the_processor_shows_as_many_cores_as_asked(cores: int) -> None:
    options = DeviceOptions(cores=cores)
    text = userland.cpuinfo(options)
    assert text.count("processor\t:") == cores
    assert "CPU implementer\t: 0x41" in text
    files = userland.sysfs(options)
    assert files["devices/system/cpu/possible"] == ("0" if cores == 1 else f"0-{cores - 1}")
    assert sum(name.endswith("cpuinfo_max_freq") for name in files) == cores


def test_properties_can_be_added_and_replaced() -> None:
    shown = properties(DeviceOptions(serial="S1", properties={"ro.soc.model": "SM8550", "vendor.x": "1"}))
    assert (shown["ro.serialno"], shown["ro.soc.model"], shown["vendor.x"]) == ("S1", "SM8550", "1")


def test_the_registration_names_arm64_programs_and_the_flags(tmp_path: Path) -> None:
    fields = binfmt.line("/usr/bin/qemu-aarch64-static").decode().split(":")
    assert (fields[2], fields[6], fields[7]) == ("M", "/usr/bin/qemu-aarch64-static", "PF")
    magic, mask = (bytes.fromhex(fields[index].replace("\\x", "")) for index in (4, 5))
    header = b"\x7fELF\x02\x01\x01\x00" + bytes(8) + struct.pack("<HH", 3, 183)  # a position-independent program for AArch64
    assert bytes(byte & bit for byte, bit in zip(header, mask, strict=True)) == bytes(byte & bit for byte, bit in zip(magic, mask, strict=True))
    host = header[:18] + struct.pack("<H", 62)  # one for x86-64
    assert bytes(byte & bit for byte, bit in zip(host, mask, strict=True)) != magic


@pytest.mark.parametrize(("flags", "usable"), [("PF", True), ("POF", True), ("P", False), ("", False)])
def test_a_registration_that_is_there_is_left_alone(tmp_path: Path, flags: str, usable: bool) -> None:
    (tmp_path / "status").write_text("enabled\n")
    (tmp_path / "register").touch()
    entry = f"enabled\ninterpreter /x\nflags: {flags}\noffset 0\nmagic 7f454c460201010000000000000000000200b700\nmask ff\n"
    (tmp_path / "someone-elses").write_text(entry)
    assert binfmt.registered(tmp_path) is usable
    if usable:
        binfmt.register(tmp_path)
        assert (tmp_path / "register").read_bytes() == b""


def test_start_without_the_userland_names_the_command_and_downloads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(MissingPackageError) as raised:
        android.start()
    assert raised.value.hint == "edgekit devices install virtual:android-arm64"
    assert list(tmp_path.iterdir()) == []


def test_missing_programs_are_named_with_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(binfmt, "needed", lambda: True)
    first = android.missing()[0]
    assert first == "apt-get, dpkg, qemu-aarch64-static, unshare: apt-get update && apt-get install -y apt dpkg qemu-user-static util-linux"


@pytest.mark.parametrize("serial", ["../up", "a/b", "with space", ".hidden"])
def test_a_serial_that_is_a_path_is_refused(serial: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rootfs, "missing", lambda: ())
    with pytest.raises(UsageError, match="not a serial number"):
        android.start(DeviceOptions(serial=serial))


def test_what_a_dead_device_left_is_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEKIT_STATE", str(tmp_path))
    dead = tmp_path / "virtual-android/DEAD"
    dead.mkdir(parents=True)
    (dead / "lock").touch()
    (dead / "device.json").write_text("{}")
    assert android.running() == ()
    assert not dead.exists()


def test_control_sockets_work_in_folders_with_long_names(tmp_path: Path) -> None:
    from edgekit.virtual.android import control

    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    with control.listen(folder) as listener:
        assert listener.family == socket.AF_UNIX
        assert (folder / "control").exists()
