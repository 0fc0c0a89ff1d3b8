"""The adb transport: what it makes of servers and devices, without and with a device. All faults are in test_transport_adb_faults."""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgekit.errors import DeviceError, UsageError
from edgekit.transports import adb as transport
from edgekit.transports import adb_server, adb_shell, adb_sync, folders, probe, scripts
from edgekit.transports.adb_errors import reason_of_adb, translated
from edgekit.virtual import android
from tests import shell_runner
from tests.android_fixtures import Adb, free_port, private_adb, require_device


@contextmanager
def stand_in(answers: Mapping[str, bytes]) -> Iterator[int]:
    """An adb server that knows these host commands; a command it does not know is answered with FAIL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    size = peer.recv(4)
                    if size:
                        command = peer.recv(int(size, 16)).decode()
                        body = answers.get(command)
                        peer.sendall(b"FAIL0007unknown" if body is None else b"OKAY%04x%b" % (len(body), body))

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


def refusal(address: str, devices: str, version: bytes = b"0029") -> DeviceError:
    with stand_in({"host:version": version, "host:devices": devices.encode()}) as port:
        with pytest.raises(DeviceError) as caught:
            transport.connect(address, {"server_port": port, "reconnect_s": 0.2})
        assert caught.value.hint
        return caught.value


def test_no_server_is_an_error_and_none_is_started() -> None:
    port = free_port()
    with pytest.raises(DeviceError) as caught:
        transport.connect("", {"server_port": port})
    assert caught.value.reason == "server-missing"
    with socket.socket() as probe_socket:
        assert probe_socket.connect_ex(("127.0.0.1", port)) != 0


def test_a_server_too_old_is_named_with_the_program_here_and_left_running() -> None:
    error = refusal("", "", version=b"0020")
    assert error.reason == "server-version"
    assert "1.0.32" in error.message
    assert "program here is" in error.message


@pytest.mark.parametrize(
    ("address", "devices", "reason", "word"),
    [
        ("", "", "no-device", "none"),
        ("", "A1\tdevice\nB 2\tdevice\n", "several-devices", "B 2"),
        ("X9", "A1\tdevice\n", "not-found", "A1"),
        ("A1", "A1\tunauthorized\n", "unauthorized", "A1"),
        ("A 1", "A 1\toffline\n", "offline", "A 1"),
        ("", "A1\toffline\n", "offline", "A1"),
        ("A1", "A1\trecovery\n", "offline", "recovery"),
        ("A1", "A1\tno permissions (missing udev rules)\n", "permission-denied", "udev"),
    ],
)
def test_what_a_server_lists_becomes_one_reason(address: str, devices: str, reason: str, word: str) -> None:
    error = refusal(address, devices)
    assert error.reason == reason
    assert word in error.message


def test_the_only_ready_device_is_chosen_and_serials_may_hold_spaces() -> None:
    with stand_in({"host:version": b"0029", "host:devices": b"my phone\tdevice\nB\toffline\n"}) as port:
        assert transport.connect("", {"server_port": port}).device == "my phone"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("device unauthorized.\nThis adb server's $ADB_VENDOR_KEYS is not set", "unauthorized"),
        ("device offline", "offline"),
        ("device 'x' not found", "not-found"),
        ("more than one device/emulator", "several-devices"),
        ("failed to connect to '127.0.0.1:1': Connection refused", "powered-off"),
        ("couldn't create file: No space left on device", "disk-full"),
        ("remote couldn't create file: Read-only file system", "read-only"),
        ("secure_mkdirs failed: Permission denied", "permission-denied"),
        ("closed", "dropped"),
        ("", "dropped"),
    ],
)
def test_texts_of_adb_become_reasons(text: str, reason: str) -> None:
    assert reason_of_adb(text) == reason


def test_options_are_typed_and_unknown_ones_refused() -> None:
    with pytest.raises(UsageError) as caught:
        transport.connect("", {"server_prt": "1"})
    assert "server_port" in (caught.value.hint or "")
    with pytest.raises(UsageError):
        transport.connect("", {"retries": "many"})


@pytest.mark.parametrize(("text", "network"), [("127.0.0.1:5555", True), ("[::1]:5555", True), ("A1", False), ("adb-1._adb-tls-connect._tcp", False)])
def test_only_host_and_port_is_dialed(text: str, network: bool) -> None:
    assert adb_server.is_network(text) is network


def conversation(reply: bytes, work: Callable[[socket.socket], object]) -> object:
    """Work on one end of a socket whose other end has sent `reply` and closed."""
    here, there = socket.socketpair()
    here.settimeout(2)
    with here, there:
        there.sendall(reply)
        there.shutdown(socket.SHUT_WR)
        return work(here)


def test_a_shell_answer_cut_short_is_not_an_answer() -> None:
    whole = b"\x01\x02\x00\x00\x00hi\x02\x01\x00\x00\x00!\x03\x01\x00\x00\x00\x07"
    done = conversation(whole, lambda channel: adb_shell.converse(channel, b"x", 2))
    assert done == adb_shell.Completed(7, "hi", "!")
    for length in range(len(whole)):
        with pytest.raises(EOFError):
            conversation(whole[:length], lambda channel: adb_shell.converse(channel, b"x", 2))


def test_a_failed_send_keeps_the_devices_words(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(2000))
    reply = b"FAIL\x17\x00\x00\x00No space left on device"
    with pytest.raises(adb_sync.SyncFailedError, match="No space left on device"):
        conversation(reply, lambda channel: adb_sync.send_file(channel, path, "/x", 0o644))


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"DATA\x05\x00\x00\x00helloDATA\x05\x00\x00\x00helloDONE\0\0\0\0", adb_sync.TooLargeError),
        (b"DATA\x05\x00\x00\x00he", EOFError),
        (b"DATA\xff\xff\xff\xff", EOFError),
        (b"WHAT\x00\x00\x00\x00", EOFError),
        (b"FAIL\x02\x00\x00\x00no", adb_sync.SyncFailedError),
    ],
)
def test_a_bad_pull_is_an_error(tmp_path: Path, reply: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        conversation(reply, lambda channel: adb_sync.receive_file(channel, "/x", tmp_path / "x", 8))


@pytest.mark.parametrize("step", [1, 7, 8, 9, 13, 100])
def test_a_pull_is_whole_however_it_is_cut(tmp_path: Path, step: int) -> None:
    """Packets arrive in pieces that have nothing to do with where they begin and end."""
    content = bytes(range(256)) * 2
    sizes = (1, 0, 200, 311)
    reply, start = b"", 0
    for size in sizes:
        reply += struct.pack("<4sI", b"DATA", size) + content[start : start + size]
        start += size
    reply += b"DONE\0\0\0\0"
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(5)

        def send() -> None:
            for at in range(0, len(reply), step):
                there.sendall(reply[at : at + step])

        feeder = threading.Thread(target=send)
        feeder.start()
        assert adb_sync.receive_file(here, "/x", tmp_path / "x", 512) == 512
        feeder.join()
    assert (tmp_path / "x").read_bytes() == content


def test_the_longest_unused_go_first_until_the_rest_fits() -> None:
    text = "".join(f"{used} {size} cache/{name * 64}\n" for used, size, name in [(30, 5, "a"), (10, 4, "b"), (20, 6, "c")])
    assert scripts.evictable(text, 15) == ()
    assert scripts.evictable(text, 11) == ("b" * 64,)
    assert scripts.evictable(text, 0) == ("b" * 64, "c" * 64, "a" * 64)


def test_a_listing_that_leaves_the_folder_is_refused() -> None:
    from edgekit.errors import RunnerError

    assert folders.listing(f"{'0' * 64}  ./deep/x y\n")[0].name == "deep/x y"
    for line in (f"{'0' * 64}  ./../x", f"{'0' * 64}  /etc/passwd", "zz  ./x", f"{'0' * 64}  "):
        with pytest.raises(RunnerError):
            folders.listing(line)
    twice, folder = "\n".join([f"{'0' * 64}  ./x"] * 2), f"{'0' * 64}  ./x\n{'0' * 64}  ./x/y"
    for text in (twice, folder, f"{'0' * 64}  ./."):
        with pytest.raises(RunnerError, match="names one twice"):
            folders.listing(text)


def test_facts_of_a_phone_are_read_from_its_properties() -> None:
    props = {"ro.build.version.sdk": "34", "ro.product.cpu.abi": "arm64-v8a", "ro.serialno": "X1"}
    props |= {"ro.product.manufacturer": "Google", "ro.product.model": "Pixel 8"}
    text = "--props\n" + "".join(f"[{name}]: [{value}]\n" for name, value in props.items())
    text += "--uname\nLinux 5.15 aarch64\n--linker\n/system/bin/linker64\n--memory\n8000\n--cpus\n0-8\n--zones\n31000 skin\n--end\n"
    facts = probe.read(text, "192.168.1.2:5555", {})
    assert (facts.identity, facts.platform, facts.model, facts.cores) == ("X1", "android-arm64-v8a", "Google Pixel 8", 9)
    assert facts.details["api_level"] == "34"
    assert facts.memory_bytes == 8_192_000
    assert facts.details["temperature_millicelsius.skin"] == "31000"
    assert not facts.emulated


def test_what_a_hostile_device_says_of_itself_is_read_in_no_time() -> None:
    digits = "9" * 10_000
    text = "--props\n[ro.build.version.sdk]: [34\n35]\n" + "[a]: [\n" * 200_000 + f"--memory\n{digits}\n--cpus\n0-{digits}\n--end\n"
    started = time.monotonic()
    facts = probe.read(text, "X1", {})
    assert time.monotonic() - started < 5
    assert (facts.os, facts.memory_bytes, facts.details["api_level"]) == ("android", None, "34\n35")
    prepared = scripts.read_prepared(f"now {digits}\nrun run-ab/.owner {socket.gethostname()} {digits} {digits}\n", "cd")
    assert prepared.others == ()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adb]:
    require_device()
    with private_adb("bundled", tmp_path_factory.mktemp("adb-home")) as started:
        yield started


def test_a_run_on_the_virtual_device(server: Adb, tmp_path: Path) -> None:
    """Connects by itself, tells one device from the other, pushes large content once, leaves only the cache, and disconnects."""
    with android.device() as phone:
        link = transport.connect(phone.address, {"server_port": server.port})
        facts = link.facts()
        assert (facts.identity, facts.platform, facts.emulated, facts.os) == (phone.serial, "linux-aarch64", True, "android")
        job, result = shell_runner.make(tmp_path)
        link.execute(job, result, 30)
        assert shell_runner.files(result) == shell_runner.expected()
        before = link.shell(f"ls -i {link.base}/cache", b"", 10).stdout
        again = tmp_path / "again"
        again.mkdir()
        link.execute(job, again, 30)
        assert link.shell(f"ls -i {link.base}/cache", b"", 10).stdout == before
        assert link.shell(f"ls {link.base}", b"", 10).stdout == "cache\n"
        assert link.retries == []
        link.close()
        assert server.state(phone) == ""


def test_a_runner_for_another_processor_says_so(server: Adb, tmp_path: Path) -> None:
    with android.device() as phone:
        link = transport.connect(phone.address, {"server_port": server.port})
        job, result = shell_runner.make(tmp_path)
        (job / "runner").write_bytes(b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + b"\xf3" + bytes(2000))
        with pytest.raises(DeviceError) as caught:
            link.execute(job, result, 30)
        assert caught.value.reason == "wrong-platform"
        link.close()


def test_a_device_that_says_much_of_itself_is_cut_short() -> None:
    props = "".join(f"[ro.{name}]: [{'x' * 100_000}]\n" for name in ("serialno", "product.model", "build.fingerprint", "build.version.sdk"))
    zones = "".join(f"40000 zone{number}{'y' * 1000}\n" for number in range(2000))
    facts = probe.read(f"--props\n{props}--uname\nLinux {'z' * 9000} aarch64\n--zones\n{zones}--end\n", "x", {})
    assert facts.identity == "x" * 200 and facts.os == "android" and len(facts.details) == 256
    assert max(map(len, [facts.model, facts.os_build, *facts.details, *facts.details.values()])) == 200


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_here_is_not_the_device_s_fault(number: int) -> None:
    with pytest.raises(OSError) as caught, translated("x", "pulling"):
        raise OSError(number, "no space")
    assert caught.value.errno == number
