"""The fault matrix: each fault at each stage ends in the right error, in time, with nothing half-written, and the next run passes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgekit.errors import DeviceError, RunnerError
from edgekit.transports import adb as transport
from edgekit.virtual import android
from edgekit.virtual.android import Fault, Faults, RunningDevice
from tests import shell_runner
from tests.android_fixtures import ADB_KINDS, Adb, private_adb, require_device

pytestmark = pytest.mark.slow
QUICK = {"stall_s": 6.0, "reconnect_s": 8.0, "retries": 0}
TIME_LIMIT_S = 40.0
AT = {
    "facts": ("run", "--props"),
    "push": ("push", ""),
    "run": ("run", "./runner . "),
    "pull": ("pull", ""),
}


@pytest.fixture(scope="module", params=ADB_KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adb]:
    require_device()
    with private_adb(request.param, tmp_path_factory.mktemp("adb-home")) as started:
        yield started


@pytest.fixture(scope="module")
def shared(server: Adb) -> Iterator[RunningDevice]:
    with android.device() as started:
        server.connect(started)
        yield started


@pytest.fixture
def phone(server: Adb, shared: RunningDevice) -> Iterator[RunningDevice]:
    """The device, healthy before the test and after it."""
    yield shared
    android.set_faults(shared.serial, android.HEALTHY)
    with contextlib.suppress(DeviceError):
        android.power(shared.serial, on=True)
    server.run("disconnect", shared.address)
    server.connect(shared)


def connect(server: Adb, phone: RunningDevice, **options: float) -> transport.AdbLink:
    return transport.connect(phone.address, {"server_port": server.port, **QUICK, **options})


def use(link: transport.AdbLink, folder: Path, do: str = "", timeout_s: float = 15.0) -> dict[str, bytes]:
    """Ask for facts and run a job; the result's files."""
    link.facts()
    job, result = shell_runner.make(folder, do, model_bytes=3_000_000)
    link.execute(job, result, timeout_s)
    return shell_runner.files(result)


def leftovers(link: transport.AdbLink) -> list[str]:
    """What lies in edgekit's folder on the device besides whole cache entries."""
    paths = link.shell(f"cd {link.base} 2>/dev/null && find . ! -name . ! -path ./cache", b"", 10).stdout.split()
    return [path for path in paths if not (path.startswith("./cache/") and len(path) == len("./cache/") + 64)]


def check_healthy_again(server: Adb, phone: RunningDevice, tmp_path: Path) -> None:
    """The next run passes, and then nothing of either run is left on the device or here."""
    android.set_faults(phone.serial, android.HEALTHY)
    link = connect(server, phone, retries=1)  # the server may not have seen yet that the device was away
    assert use(link, tmp_path / "next") == shell_runner.expected()
    assert leftovers(link) == []
    for folder in (tmp_path / "first", tmp_path / "next"):
        assert not [path for path in folder.glob("*") if path.name not in ("job", "result")]


def check_fails(link: transport.AdbLink, folder: Path, reason: str, do: str = "", timeout_s: float = 15.0) -> DeviceError:
    """Using the link fails for this reason, in time, and leaves nothing here."""
    started = time.monotonic()
    with pytest.raises(DeviceError) as caught:
        use(link, folder, do, timeout_s)
    assert time.monotonic() - started < TIME_LIMIT_S
    assert caught.value.reason == reason, caught.value.message
    assert caught.value.device == link.device
    assert caught.value.hint
    assert shell_runner.files(folder / "result") == {} if (folder / "result").exists() else True
    return caught.value


@pytest.mark.parametrize("stage", AT)
@pytest.mark.parametrize(
    ("action", "reason"),
    [("drop", "dropped"), ("hang", "hung"), ("reboot", "dropped"), ("power-off", "powered-off")],
)
def test_a_link_that_fails_at_a_stage(server: Adb, phone: RunningDevice, tmp_path: Path, stage: str, action: str, reason: str) -> None:
    where, match = AT[stage]
    after = 1_000_000 if stage == "push" else 0
    link = connect(server, phone, reconnect_s=2.0 if action == "power-off" else 8.0, stall_s=3.0 if action == "hang" else 8.0)
    android.set_faults(phone.serial, Faults(events=(Fault(where, action, match, after_bytes=after),)))  # type: ignore[arg-type]  # literals
    check_fails(link, tmp_path / "first", reason, timeout_s=4.0 if action == "hang" else 15.0)
    if action in ("power-off", "hang"):
        with contextlib.suppress(DeviceError):
            android.power(phone.serial, on=False)
        android.power(phone.serial, on=True)
    check_healthy_again(server, phone, tmp_path)


@pytest.mark.parametrize("stage", AT)
def test_a_drop_is_retried_within_bounds_and_reported(server: Adb, phone: RunningDevice, tmp_path: Path, stage: str) -> None:
    where, match = AT[stage]
    once = Fault(where, "drop", match, after_bytes=1_000_000 if stage == "push" else 0)  # type: ignore[arg-type]  # literals
    android.set_faults(phone.serial, Faults(events=(once,)))
    link = connect(server, phone, retries=1)
    assert use(link, tmp_path / "first") == shell_runner.expected()
    assert [retry.reason for retry in link.retries] == ["dropped"]
    assert leftovers(link) == []


def test_retries_end(server: Adb, phone: RunningDevice, tmp_path: Path) -> None:
    android.set_faults(phone.serial, Faults(events=(Fault("push", "drop", after_bytes=1_000_000, times=None),)))
    link = connect(server, phone, retries=2)
    error = check_fails(link, tmp_path / "first", "dropped")
    assert "tried 3 times" in error.message
    assert len(link.retries) == 2
    check_healthy_again(server, phone, tmp_path)


@pytest.mark.parametrize(
    ("faults", "reason", "word"),
    [
        (Faults(free_bytes=1_500_000), "disk-full", "No space left"),
        (Faults(read_only=True), "read-only", "Read-only"),
        (Faults(noexec=True), "permission-denied", "noexec"),
        (Faults(events=(Fault("push", "fail", text="couldn't create file: Permission denied"),)), "permission-denied", "couldn't create file"),
        (Faults(events=(Fault("pull", "fail", text="open failed: Permission denied"),)), "permission-denied", "open failed"),
        (Faults(events=(Fault("run", "kill", "./runner . ", after_s=0.5),)), "killed", "memory"),
    ],
)
def test_a_device_that_refuses(server: Adb, phone: RunningDevice, tmp_path: Path, faults: Faults, reason: str, word: str) -> None:
    link = connect(server, phone)
    transport.staged.clear_cache(link)
    android.set_faults(phone.serial, faults)
    error = check_fails(link, tmp_path / "first", reason, do="sleep 3" if reason == "killed" else "")
    assert word in error.message
    check_healthy_again(server, phone, tmp_path)


def test_a_run_that_takes_too_long_is_stopped_on_the_device(server: Adb, phone: RunningDevice, tmp_path: Path) -> None:
    link = connect(server, phone)
    error = check_fails(link, tmp_path / "first", "hung", do="echo $$ > /data/local/tmp/pid; sleep 60", timeout_s=3.0)
    assert "does not answer" not in error.message
    assert link.shell("kill -0 $(cat /data/local/tmp/pid); echo $?; rm /data/local/tmp/pid", b"", 10).stdout == "1\n"
    check_healthy_again(server, phone, tmp_path)


def test_a_crash_is_the_runners_failure_with_its_signal(server: Adb, phone: RunningDevice, tmp_path: Path) -> None:
    link = connect(server, phone)
    with pytest.raises(RunnerError, match="signal 11"):
        use(link, tmp_path / "first", do="kill -11 $$")
    check_healthy_again(server, phone, tmp_path)


def test_an_unauthorized_device(server: Adb, tmp_path: Path) -> None:
    with android.device(faults=Faults(unauthorized=True)) as locked:
        started = time.monotonic()
        with pytest.raises(DeviceError) as caught:
            connect(server, locked)
        assert caught.value.reason == "unauthorized"
        assert "key" in (caught.value.hint or "")
        assert time.monotonic() - started < TIME_LIMIT_S
        server.run("disconnect", locked.address)


def test_a_device_that_is_off(server: Adb, phone: RunningDevice) -> None:
    server.run("disconnect", phone.address)
    android.power(phone.serial, on=False)
    with pytest.raises(DeviceError) as caught:
        connect(server, phone)
    assert caught.value.reason == "powered-off"


def test_a_server_that_goes_away_in_the_run(phone: RunningDevice, tmp_path: Path) -> None:
    with private_adb("system", tmp_path) as own:
        own.connect(phone)
        link = connect(own, phone)
        own.run("kill-server")
        check_fails(link, tmp_path / "first", "server-missing")
        assert own.run("start-server").returncode == 0
        link = connect(own, phone)
        assert use(link, tmp_path / "next") == shell_runner.expected()
        assert leftovers(link) == []


def test_a_slow_link_is_no_fault(server: Adb, phone: RunningDevice, tmp_path: Path) -> None:
    android.set_faults(phone.serial, Faults(link_bytes_per_s=1_000_000.0))
    link = connect(server, phone, stall_s=2.0)
    started = time.monotonic()
    assert use(link, tmp_path / "first") == shell_runner.expected()
    assert time.monotonic() - started > 2.5


def test_rotten_cache_content_of_the_same_size_is_replaced(server: Adb, phone: RunningDevice, tmp_path: Path) -> None:
    link = connect(server, phone)
    job, result = shell_runner.make(tmp_path / "first", do='cp "$1/model.bin" "$2/model.bin"')
    link.execute(job, result, 15)
    spoil = f"for f in {link.base}/cache/*; do size=$(stat -c %s $f); head -c $size /dev/zero > $f; done"
    assert link.shell(spoil, b"", 10).code == 0
    again = tmp_path / "again"
    again.mkdir()
    link.execute(job, again, 15)
    assert (again / "model.bin").read_bytes() == (job / "model.bin").read_bytes()


def test_a_run_folder_of_a_dead_process_is_removed_and_that_of_a_living_one_kept(server: Adb, phone: RunningDevice, tmp_path: Path) -> None:
    import os
    import socket

    link = connect(server, phone)
    use(link, tmp_path / "first")
    host = socket.gethostname()
    make = "".join(
        f"mkdir -p {link.base}/run-{run}/job; echo '{owner}' '{pid}' $(({since})) > {link.base}/run-{run}/.owner; "
        for run, owner, pid, since in [
            ("a" * 32, host, 2**22 + 1, "$(date +%s)"),
            ("b" * 32, host, os.getppid(), "$(date +%s)"),
            ("c" * 32, "elsewhere", 1, "$(date +%s)"),
            ("d" * 32, "elsewhere", 1, "$(date +%s) - 999999"),
        ]
    )
    assert link.shell(make, b"", 10).code == 0
    use(link, tmp_path / "next")
    kept = {path.split("/")[1][4:5] for path in leftovers(link)}
    assert kept == {"b", "c"}
    link.shell(f"rm -rf {link.base}/run-*", b"", 10)


def test_the_cache_is_bounded_and_drops_the_longest_unused(server: Adb, phone: RunningDevice, tmp_path: Path) -> None:
    link = connect(server, phone, cache_bytes=700_000)
    transport.staged.clear_cache(link)
    jobs = [shell_runner.make(tmp_path / f"j{index}") for index in range(3)]
    for index in (0, 1, 0, 2):
        shell_runner.make(tmp_path / f"r{index}-{time.monotonic_ns()}")
        result = tmp_path / f"result-{time.monotonic_ns()}"
        result.mkdir()
        link.execute(jobs[index][0], result, 15)
        time.sleep(1.1)  # the device keeps times of use in seconds
    import hashlib

    kept = set(link.shell(f"ls {link.base}/cache", b"", 10).stdout.split())
    assert kept == {hashlib.sha256((jobs[index][0] / "model.bin").read_bytes()).hexdigest() for index in (0, 2)}
    transport.staged.clear_cache(link)
    assert link.shell(f"ls {link.base}", b"", 10).stdout == ""
