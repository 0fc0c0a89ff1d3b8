"""Each fault of the virtual Android device, as a real adb shows it, and that a fault which is spent leaves a healthy device."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit.errors import DeviceError, UsageError
from edgekit.virtual import android
from edgekit.virtual.android import HEALTHY, DeviceOptions, Fault, Faults, RunningDevice
from tests.android_fixtures import Adb, adb, phone, start_phone

__all__ = ["adb", "phone", "start_phone"]

MIB = 1 << 20
TARGET = "/data/local/tmp/file"
StartPhone = Callable[..., RunningDevice]


@pytest.fixture
def blob(tmp_path: Path) -> Path:
    path = tmp_path / "blob"
    path.write_bytes(os.urandom(4 * MIB))
    return path


def _size(adb: Adb, phone: RunningDevice, path: str = TARGET) -> int:
    return int(adb.on(phone, "shell", f"stat -c %s {path}").stdout or -1)


def _said(done: subprocess.CompletedProcess[bytes]) -> bytes:
    return done.stdout + done.stderr


def test_link_dropped_in_a_push_leaves_a_part(adb: Adb, phone: RunningDevice, blob: Path) -> None:
    android.set_faults(phone.serial, Faults(events=(Fault("push", "drop", after_bytes=MIB + 1),)))
    assert adb.on(phone, "push", str(blob), TARGET).returncode != 0
    adb.await_state(phone, "device")
    assert _size(adb, phone) == MIB + 1
    assert adb.on(phone, "push", str(blob), TARGET).returncode == 0
    assert _size(adb, phone) == 4 * MIB
    assert android.state(phone.serial).fired == (f"drop at push: {TARGET}",)


def test_link_dropped_in_a_pull_fails_the_pull(adb: Adb, phone: RunningDevice, blob: Path, tmp_path: Path) -> None:
    adb.on(phone, "push", str(blob), TARGET)
    android.set_faults(phone.serial, Faults(events=(Fault("pull", "drop", after_bytes=MIB),)))
    back = tmp_path / "back"
    assert adb.on(phone, "pull", TARGET, str(back)).returncode != 0
    assert not back.exists() or back.stat().st_size <= MIB
    adb.await_state(phone, "device")
    assert adb.on(phone, "pull", TARGET, str(back)).returncode == 0
    assert back.read_bytes() == blob.read_bytes()


def test_link_dropped_in_a_run_cuts_its_output(adb: Adb, phone: RunningDevice) -> None:
    android.set_faults(phone.serial, Faults(events=(Fault("run", "drop", match="seq", after_bytes=1000),)))
    assert adb.on(phone, "shell", "echo not this one").returncode == 0
    cut = adb.on(phone, "shell", "seq 100000")  # an old adb program ends with 0 here: only its output tells
    assert len(cut.stdout) <= 1000
    adb.await_state(phone, "device")
    assert adb.on(phone, "shell", "seq 100000").stdout.endswith(b"\n100000\n")


def test_full_disk_fails_pushes_and_programs_until_lifted(adb: Adb, phone: RunningDevice, blob: Path) -> None:
    android.set_faults(phone.serial, Faults(free_bytes=MIB))
    for _ in range(2):
        full = adb.on(phone, "push", str(blob), TARGET)
        assert full.returncode != 0
        assert b"No space left on device" in _said(full)
    wrote = adb.on(phone, "shell", f"dd if=/dev/zero of={TARGET} bs=65536 count=64")
    assert wrote.returncode != 0
    assert b"No space left on device" in wrote.stderr
    android.set_faults(phone.serial, HEALTHY)
    assert adb.on(phone, "push", str(blob), TARGET).returncode == 0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(Faults(free_bytes=MIB, one_shot=True), b"No space left on device"), (Faults(read_only=True, one_shot=True), b"Read-only file system")],
)
def test_one_shot_faults_of_the_disk_are_lifted_once_shown(adb: Adb, phone: RunningDevice, blob: Path, fault: Faults, reason: bytes) -> None:
    android.set_faults(phone.serial, fault)
    failed = adb.on(phone, "push", str(blob), TARGET)
    assert failed.returncode != 0
    assert reason in _said(failed)
    assert adb.on(phone, "push", str(blob), TARGET).returncode == 0
    assert _size(adb, phone) == 4 * MIB


def test_read_only_data_refuses_what_a_command_writes(adb: Adb, phone: RunningDevice) -> None:
    android.set_faults(phone.serial, Faults(read_only=True))
    done = adb.on(phone, "shell", "mkdir /data/local/tmp/folder")
    assert done.returncode != 0
    assert b"Read-only file system" in done.stderr


def test_noexec_data_runs_no_programs_once(adb: Adb, phone: RunningDevice) -> None:
    command = "cp /system/bin/busybox /data/local/tmp && /data/local/tmp/busybox echo ran"
    android.set_faults(phone.serial, Faults(noexec=True, one_shot=True))
    refused = adb.on(phone, "shell", command)
    assert refused.returncode == 126
    assert b"ermission denied" in refused.stderr
    assert adb.on(phone, "shell", command).stdout == b"ran\n"


def test_refused_push_pull_and_run_give_the_reason(adb: Adb, phone: RunningDevice, blob: Path, tmp_path: Path) -> None:
    events = (Fault("push", "fail", text="Operation not permitted"), Fault("pull", "fail", after_bytes=MIB), Fault("run", "fail", match="tool"))
    android.set_faults(phone.serial, Faults(events=events))
    assert b"Operation not permitted" in _said(adb.on(phone, "push", str(blob), TARGET))
    assert adb.on(phone, "push", str(blob), TARGET).returncode == 0
    assert b"Permission denied" in _said(adb.on(phone, "pull", TARGET, str(tmp_path / "back")))
    run = adb.on(phone, "shell", "echo tool")
    assert (run.returncode, run.stdout) == (126, b"")
    assert b"Permission denied" in run.stderr
    assert adb.on(phone, "shell", "echo tool").stdout == b"tool\n"


def test_slow_link_takes_the_time_that_its_rate_says(adb: Adb, phone: RunningDevice, blob: Path) -> None:
    android.set_faults(phone.serial, Faults(link_bytes_per_s=8 * MIB))
    started = time.monotonic()
    assert adb.on(phone, "push", str(blob), TARGET).returncode == 0
    assert 0.45 < time.monotonic() - started < 5


def test_hung_device_answers_again_after_its_time(adb: Adb, phone: RunningDevice) -> None:
    android.set_faults(phone.serial, Faults(events=(Fault("run", "hang", match="stuck", lasts_s=0.8),)))
    with pytest.raises(subprocess.TimeoutExpired):
        adb.on(phone, "shell", "echo stuck", timeout_s=0.4)
    assert adb.state(phone) == "device"
    assert adb.on(phone, "shell", "echo stuck").stdout == b"stuck\n"


def test_device_hung_for_good_is_freed_by_a_new_connection(adb: Adb, phone: RunningDevice, blob: Path) -> None:
    android.set_faults(phone.serial, Faults(events=(Fault("push", "hang", after_bytes=MIB),)))
    with pytest.raises(subprocess.TimeoutExpired):
        adb.on(phone, "push", str(blob), TARGET, timeout_s=0.5)
    adb.run("disconnect", phone.address)
    adb.connect(phone)
    assert adb.on(phone, "push", str(blob), TARGET).returncode == 0


def test_device_hung_at_the_handshake_is_not_connected(adb: Adb, start_phone: StartPhone) -> None:
    silent = start_phone(faults=Faults(events=(Fault("connect", "hang"),)), connect=False)
    with pytest.raises(subprocess.TimeoutExpired):
        adb.run("connect", silent.address, timeout_s=0.7)
    assert adb.state(silent) != "device"
    adb.run("disconnect", silent.address)
    adb.connect(silent)
    assert adb.on(silent, "shell", "echo hi").stdout == b"hi\n"


def test_killed_program_ends_by_signal_9(adb: Adb, phone: RunningDevice) -> None:
    android.set_faults(phone.serial, Faults(events=(Fault("run", "kill", match="sleep", after_s=0.2),)))
    assert adb.on(phone, "shell", "echo other").returncode == 0
    started = time.monotonic()
    done = adb.on(phone, "shell", "echo begun; sleep 30; echo never")
    assert (done.returncode, done.stdout) == (137, b"begun\n")
    assert 0.2 < time.monotonic() - started < 5
    assert adb.on(phone, "shell", "sleep 0.3").returncode == 0


@pytest.mark.slow
def test_reboot_in_a_run_ends_it_and_comes_back(adb: Adb, phone: RunningDevice) -> None:
    android.set_faults(phone.serial, Faults(events=(Fault("run", "reboot", match="sleep", after_s=0.2),)))
    adb.on(phone, "shell", "echo kept > /data/local/tmp/note; (sleep 654 &) </dev/null >/dev/null 2>&1")
    assert adb.on(phone, "shell", "ps -o args | grep -c '[s]leep 654'").stdout == b"1\n"
    done = adb.on(phone, "shell", "sleep 30; echo never", timeout_s=20)
    assert b"never" not in done.stdout
    adb.await_state(phone, "device")
    assert adb.on(phone, "shell", "cat /data/local/tmp/note; ps -o args | grep -c '[s]leep 654'").stdout == b"kept\n0\n"


@pytest.mark.slow
def test_adb_reboot_and_power(adb: Adb, phone: RunningDevice) -> None:
    assert adb.on(phone, "reboot").returncode == 0
    adb.await_state(phone, "device")
    android.power(phone.serial, on=False)
    assert not android.state(phone.serial).powered
    assert adb.on(phone, "shell", "echo hi", timeout_s=20).returncode != 0
    android.power(phone.serial, on=True)
    adb.run("disconnect", phone.address)
    adb.connect(phone)
    assert adb.on(phone, "shell", "echo hi").stdout == b"hi\n"


def test_unauthorized_device_is_listed_as_such_until_its_owner_agrees(adb: Adb, start_phone: StartPhone) -> None:
    locked = start_phone(faults=Faults(unauthorized=True), connect=False)
    adb.run("connect", locked.address)
    adb.await_state(locked, "unauthorized")
    refused = adb.on(locked, "shell", "echo hi")
    assert refused.returncode != 0
    assert b"unauthorized" in refused.stderr
    android.set_faults(locked.serial, HEALTHY)
    adb.run("disconnect", locked.address)
    adb.connect(locked)


def test_device_that_takes_any_key_is_authorized(adb: Adb, start_phone: StartPhone) -> None:
    asking = start_phone(DeviceOptions(accept_any_key=True))
    assert adb.on(asking, "shell", "echo hi").stdout == b"hi\n"


@pytest.mark.slow
def test_temperature_and_clocks_follow_their_stories(adb: Adb, start_phone: StartPhone) -> None:
    story = Faults(temperature_mc=((0, 30_000), (1.0, 50_000)), clock_khz=((0, 0), (0.5, 900_000)))
    warm = start_phone(DeviceOptions(cores=2), story)
    files = "/sys/class/thermal/thermal_zone0/temp /sys/devices/system/cpu/cpu[01]/cpufreq/scaling_cur_freq"
    began = [int(row) for row in adb.on(warm, "shell", f"cat {files}").stdout.split()]
    assert 30_000 <= began[0] < 50_000
    time.sleep(1.2)
    assert adb.on(warm, "shell", f"cat {files}").stdout.split() == [b"50000", b"900000", b"900000"]
    android.set_faults(warm.serial, HEALTHY)
    time.sleep(0.3)
    assert adb.on(warm, "shell", f"cat {files}").stdout.split() == [b"35000", b"1800000", b"2400000"]


def test_several_devices_run_at_once_and_are_found_by_serial(adb: Adb, start_phone: StartPhone) -> None:
    started = [start_phone(DeviceOptions(serial=f"TEST-{os.getpid()}-{n}", cores=4), connect=False) for n in range(3)]
    assert {device.serial for device in started} <= {found.serial for found in android.running()}
    with pytest.raises(UsageError, match="already running"):
        android.start(DeviceOptions(serial=started[0].serial))
    with pytest.raises(DeviceError, match="no virtual device"):
        android.stop("no-such-device")
    for device in started:
        adb.connect(device)
        assert adb.on(device, "shell", "getprop ro.serialno; grep -c ^processor /proc/cpuinfo").stdout == f"{device.serial}\n4\n".encode()
