"""The virtual Android device as real adb servers see it: the system's adb and the one that adbutils brings."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit.errors import DeviceError
from edgekit.virtual import android
from edgekit.virtual.android import DeviceOptions, Faults, RunningDevice
from tests.android_fixtures import Adb, adb, free_port, phone, require_device, start_phone

__all__ = ["adb", "phone", "start_phone"]


def test_adb_lists_the_device(adb: Adb, phone: RunningDevice) -> None:
    row = next(line for line in adb.run("devices", "-l").stdout.decode().splitlines() if line.startswith(phone.address))
    assert "product:virtual_arm64" in row
    assert "model:Edgekit_Virtual_arm64" in row


def test_properties_name_the_device(adb: Adb, phone: RunningDevice) -> None:
    rows = adb.on(phone, "shell", "getprop").stdout.decode().splitlines()
    told = dict(row[1:-1].split("]: [") for row in rows)
    assert told["ro.serialno"] == phone.serial
    assert told["ro.product.cpu.abi"] == "arm64-v8a"
    assert adb.on(phone, "shell", "uname -m; getprop ro.build.version.sdk; setprop a.b 'c d'; getprop a.b").stdout == b"aarch64\n34\nc d\n"


def test_streams_and_exit_code_come_apart(adb: Adb, phone: RunningDevice) -> None:
    done = adb.on(phone, "shell", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 7)
    assert adb.on(phone, "shell", "no-such-program").returncode == 127


def test_death_by_signal_is_128_and_the_signal(adb: Adb, phone: RunningDevice) -> None:
    assert adb.on(phone, "shell", "kill -9 $$").returncode == 137
    assert adb.on(phone, "shell", "kill -15 $$").returncode == 143


def test_stdin_reaches_the_command(adb: Adb, phone: RunningDevice) -> None:
    assert adb.on(phone, "shell", "wc -c", stdin=b"z" * 3_000_000).stdout.strip() == b"3000000"


def test_exec_out_carries_bytes_unchanged(adb: Adb, phone: RunningDevice) -> None:
    done = adb.on(phone, "exec-out", "head -c 5000000 /dev/zero; printf '\\r\\n\\000'")
    assert done.stdout == bytes(5_000_000) + b"\r\n\0"


def test_exec_in_stores_stdin(adb: Adb, phone: RunningDevice) -> None:
    data = os.urandom(1_000_000)
    adb.on(phone, "exec-in", "cat > /data/local/tmp/in; mv /data/local/tmp/in /data/local/tmp/whole", stdin=data)
    deadline = time.monotonic() + 10
    while (held := adb.on(phone, "exec-out", "cat /data/local/tmp/whole 2>/dev/null").stdout) != data:
        assert time.monotonic() < deadline, len(held)


def test_programs_in_the_background_outlive_their_shell_and_leave_no_zombie(adb: Adb, phone: RunningDevice) -> None:
    adb.on(phone, "shell", "(sleep 0.3; echo done > /data/local/tmp/note) </dev/null >/dev/null 2>&1 &")
    deadline = time.monotonic() + 5
    while adb.on(phone, "shell", "cat /data/local/tmp/note").stdout != b"done\n":
        assert time.monotonic() < deadline
    adb.on(phone, "shell", "true")
    assert b"Z" not in adb.on(phone, "shell", "ps -o stat").stdout


def test_client_that_leaves_ends_the_command(adb: Adb, phone: RunningDevice) -> None:
    client = subprocess.Popen(
        [adb.program, "-s", phone.address, "shell", "echo started; sleep 987"], env=adb.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"started\n"
    client.kill()
    client.wait()
    client.stdout.close()
    deadline = time.monotonic() + 5
    while b"sleep 987" in adb.on(phone, "shell", "ps -o args | grep '[s]leep 987'").stdout:
        assert time.monotonic() < deadline


def test_push_and_pull_keep_every_byte_and_the_mode(adb: Adb, phone: RunningDevice, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(5_000_001))
    source.chmod(0o755)
    assert adb.on(phone, "push", str(source), "/data/local/tmp/new/folder/file").returncode == 0
    digest = hashlib.sha256(source.read_bytes()).hexdigest().encode()
    assert adb.on(phone, "shell", "sha256sum < /data/local/tmp/new/folder/file; stat -c %a /data/local/tmp/new/folder/file").stdout.split() == [
        digest,
        b"-",
        b"755",
    ]
    assert adb.on(phone, "pull", "/data/local/tmp/new/folder/file", str(back)).returncode == 0
    assert back.read_bytes() == source.read_bytes()


def test_folders_travel_with_links(adb: Adb, phone: RunningDevice, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/empty").touch()
    (tree / "text").write_text("hello")
    (tree / "link").symlink_to("text")
    assert adb.on(phone, "push", str(tree), "/data/local/tmp/").returncode == 0
    assert adb.on(phone, "shell", "cd /data/local/tmp/tree; readlink link; cat link; ls -d a/b/empty").stdout == b"text\nhelloa/b/empty\n"
    assert adb.on(phone, "pull", "/data/local/tmp/tree", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back/text").read_text() == "hello"
    assert (tmp_path / "back/a/b/empty").is_file()
    assert b"getprop" in adb.on(phone, "ls", "/system/bin").stdout


def test_no_path_leads_out_of_the_device(adb: Adb, phone: RunningDevice, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host")
    adb.on(phone, "shell", f"ln -s {secret} /data/local/tmp/absolute; ln -s ../../../../../../..{secret} /data/local/tmp/climbing")
    for path in ("/data/local/tmp/absolute", "/data/local/tmp/climbing", f"/../../../../..{secret}"):
        assert adb.on(phone, "pull", path, str(tmp_path / "got")).returncode != 0
    adb.on(phone, "push", str(secret), "/data/local/tmp/absolute")
    adb.on(phone, "shell", f"mkdir -p {secret.parent}; echo device > {secret}")
    assert secret.read_text() == "host"
    assert not (tmp_path / "got").exists()


def test_system_is_read_only_and_the_sdcard_runs_nothing(adb: Adb, phone: RunningDevice, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    refused = adb.on(phone, "push", str(tmp_path / "file"), "/system/bin/sh")
    assert b"Read-only file system" in refused.stdout + refused.stderr
    ran = adb.on(phone, "shell", "cp /system/bin/busybox /sdcard/busybox && chmod 755 /sdcard/busybox && /sdcard/busybox true")
    assert ran.returncode == 126
    assert b"ermission denied" in ran.stderr
    assert adb.on(phone, "shell", "cp /system/bin/busybox /data/local/tmp/ && /data/local/tmp/busybox true").returncode == 0


def test_forward_and_reverse_carry_bytes(adb: Adb, phone: RunningDevice) -> None:
    with socket.create_server(("127.0.0.1", 0)) as echo:
        threading.Thread(target=_shout_back, args=(echo,), daemon=True).start()
        there = echo.getsockname()[1]
        local = int(adb.on(phone, "forward", "tcp:0", f"tcp:{there}").stdout)
        assert _shout(local) == b"HELLO"
        remote = int(adb.on(phone, "reverse", "tcp:0", f"tcp:{there}").stdout)
        assert _shout(remote) == b"HELLO"
        assert f"tcp:{remote} tcp:{there}" in adb.on(phone, "reverse", "--list").stdout.decode()
        assert adb.on(phone, "reverse", "--remove", f"tcp:{remote}").returncode == 0
        assert adb.on(phone, "reverse", "--remove", f"tcp:{remote}").returncode != 0
        with pytest.raises(ConnectionError):
            _shout(remote)
        adb.on(phone, "reverse", f"tcp:{free_port()}", f"tcp:{there}")
        assert adb.on(phone, "reverse", "--remove-all").returncode == 0
        assert adb.on(phone, "reverse", "--list").stdout.strip() == b""


def _shout(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5) as client:
        client.sendall(b"hello")
        return client.recv(100)


def _shout_back(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.sendall(connection.recv(100).upper())


def test_many_commands_at_once_keep_their_exit_codes(adb: Adb, phone: RunningDevice) -> None:
    codes: dict[int, int] = {}
    workers = [threading.Thread(target=lambda n=n: codes.update({n: adb.on(phone, "shell", f"exit {n}").returncode})) for n in range(20)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert codes == {n: n for n in range(20)}


def test_stop_leaves_nothing_behind(phone: RunningDevice) -> None:
    android.stop(phone.serial)
    assert phone.serial not in [found.serial for found in android.running()]
    assert not Path(phone.folder).exists()
    assert not Path(f"/proc/{phone.pid}").exists()


def test_programs_of_the_device_have_no_power_over_the_host(adb: Adb, phone: RunningDevice, tmp_path: Path) -> None:
    assert adb.on(phone, "shell", "grep CapEff /proc/self/status").stdout.split()[-1].strip(b"0") == b""
    for command in ("echo x > /proc/sys/kernel/hostname", "mount -t tmpfs x /data", "chroot / true", "mknod /dev/disk b 8 0", "touch /file"):
        assert adb.on(phone, "shell", command).returncode != 0, command
    for path in ("/proc/self/exe", "/proc/1/fd/2", "/proc/1/cwd/file"):
        assert adb.on(phone, "pull", path, str(tmp_path / "got")).returncode != 0, path


def test_device_ends_with_the_process_that_started_it() -> None:
    require_device()
    script = "from edgekit.virtual import android; print(android.start().folder, flush=True); input()"
    starter = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent)
    assert starter.stdout is not None
    folder = Path(starter.stdout.readline().decode().strip())
    assert folder.name in [found.serial for found in android.running()]
    starter.kill()
    starter.communicate()
    deadline = time.monotonic() + 5
    while folder.name in [found.serial for found in android.running()]:
        assert time.monotonic() < deadline
    assert not folder.exists()


def _await_program(command: str, *, there: bool) -> None:
    deadline = time.monotonic() + 5
    while (subprocess.run(["pgrep", "-f", command], capture_output=True, check=False).returncode == 0) is not there:
        assert time.monotonic() < deadline, f"{command} is {'not there' if there else 'still there'}"
        time.sleep(0.02)


def test_killed_device_takes_its_programs_along_and_is_forgotten(adb: Adb, phone: RunningDevice) -> None:
    adb.on(phone, "shell", "(sleep 741 &) </dev/null >/dev/null 2>&1")
    _await_program("sleep 741", there=True)
    os.kill(phone.pid, signal.SIGKILL)
    _await_program("sleep 741", there=False)
    assert phone.serial not in [found.serial for found in android.running()]
    assert not Path(phone.folder).exists()


def test_port_that_is_taken_is_an_error_and_leaves_nothing(phone: RunningDevice) -> None:
    before = android.running()
    with pytest.raises(DeviceError, match="in use"):
        android.start(DeviceOptions(serial="TAKEN", port=int(phone.address.split(":")[1])))
    assert android.running() == before
    assert not (Path(phone.folder).parent / "TAKEN").exists()


_NOT_ROOT = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
_FORGET_QEMU = 'mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && exec "$@"'
_NO_QEMU = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _FORGET_QEMU, "sh", *_NOT_ROOT]


@pytest.mark.parametrize("prefix", [_NOT_ROOT, _NO_QEMU], ids=["registered", "unregistered"])
def test_device_runs_without_root(adb: Adb, prefix: list[str]) -> None:
    """In a user namespace where this process is no root, and (second case) where the kernel knows no qemu yet."""
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel lets no user make such namespaces")
    script = "from edgekit.virtual import android; print(android.start().serial, flush=True); input()"
    command = [*prefix, sys.executable, "-c", script]
    starter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent)
    assert starter.stdout is not None
    serial = starter.stdout.readline().decode().strip()
    try:
        phone = next(found for found in android.running() if found.serial == serial)
        adb.connect(phone)
        assert adb.on(phone, "shell", "uname -m; echo x > /dev/null; grep -c ^processor /proc/cpuinfo").stdout.startswith(b"aarch64\n")
    finally:
        starter.communicate(b"\n", timeout=10)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root without namespaces")
def test_root_without_namespaces_gets_a_copy(adb: Adb, start_phone: Callable[..., RunningDevice]) -> None:
    plain = start_phone(DeviceOptions(isolated=False))
    assert not plain.isolated
    script = "uname -m; head -c 3 /dev/zero | wc -c; grep -c ^processor /proc/cpuinfo; (sleep 321 &) </dev/null >/dev/null 2>&1"
    assert adb.on(plain, "shell", script).stdout.startswith(b"aarch64\n3\n")
    with pytest.raises(DeviceError, match="mount namespaces"):
        android.set_faults(plain.serial, Faults(read_only=True))
    _await_program("sleep 321", there=True)
    android.stop(plain.serial)
    assert not Path(plain.folder).exists()
    _await_program("sleep 321", there=False)
