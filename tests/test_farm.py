"""The farm file, leases between processes, and work over many units."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from edgekit import farm, resources
from edgekit.device import Unit
from edgekit.errors import DeviceError, UsageError

UNIT = Unit("pixel", "adb", "X1")
HOLD = """
import sys, time
from edgekit import farm
from edgekit.device import Unit
with farm.lease(Unit("other name", "adb", "X1"), limit_s=float(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEKIT_STATE", str(tmp_path / "state"))


def hold(limit_s: float = 100.0) -> subprocess.Popen[str]:
    """Another process that holds the unit."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(limit_s)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    assert process.stdout and process.stdout.readline() == "held\n"
    return process


def test_the_example_farm_file_is_one(tmp_path: Path) -> None:
    loaded = farm.load(resources.directory("devices") / "farm.example.toml")
    assert loaded.parallel == 4
    assert loaded.units["galaxy"].options == {"server_port": 5037, "reconnect_s": 20.0}
    assert loaded.units["board"].address == "ssh:pi@raspberrypi.local"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('[units.a]\nadress = "local:"', "address"),
        ('[units.a]\naddress = "pixel"', "unit a"),
        ('[units.a]\naddress = "local:"\ndevice = "pixel-9x"', "pixel-8"),
        ('[units.a]\naddress = "local:"\nconcurrency = 0', "concurrency"),
        ("[units", "TOML"),
    ],
)
def test_a_wrong_farm_file_says_what_is_wrong(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "farm.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        farm.load(path)
    assert word in f"{caught.value.message} {caught.value.hint}"


def test_an_absent_farm_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        farm.load(tmp_path / "none.toml")


def test_a_second_process_waits_and_then_says_who_holds_the_unit() -> None:
    other = hold()
    try:
        start = time.monotonic()
        with pytest.raises(DeviceError) as caught, farm.lease(UNIT, wait_s=0.4):
            pass
        assert 0.4 <= time.monotonic() - start < 2
        assert caught.value.reason == "busy"
        assert f"process {other.pid}" in caught.value.message
        assert [owner.pid for owner in farm.holders(UNIT)] == [other.pid]
    finally:
        other.kill()
        other.wait()


def test_a_killed_holder_frees_the_unit() -> None:
    other = hold()
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    with farm.lease(UNIT, wait_s=2) as owner:
        assert owner.pid == os.getpid()
    assert farm.holders(UNIT) == ()


def test_a_waiting_test_gets_the_unit_when_it_is_given_back() -> None:
    got = threading.Event()

    def second() -> None:
        with farm.lease(UNIT, wait_s=5):
            got.set()

    with farm.lease(UNIT):
        thread = threading.Thread(target=second)
        thread.start()
        assert not got.wait(0.3)
    thread.join(5)
    assert got.is_set()


def test_an_overdue_holder_is_passed_over_and_does_not_take_the_unit_back() -> None:
    other = hold(limit_s=0.1)
    try:
        time.sleep(0.2)
        with farm.lease(UNIT, wait_s=1) as owner:
            assert owner.generation == 1
            with pytest.raises(DeviceError), farm.lease(UNIT, wait_s=0):
                pass
        with farm.lease(UNIT, wait_s=0):
            pass
    finally:
        other.kill()
        other.wait()


def test_a_unit_of_concurrency_two_is_held_twice_and_not_thrice() -> None:
    unit = msgspec.structs.replace(UNIT, concurrency=2)
    with farm.lease(unit, wait_s=0), farm.lease(unit, wait_s=0), pytest.raises(DeviceError), farm.lease(unit, wait_s=0):
        pass


def test_a_lease_that_another_process_stands_still_with_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import filelock

    monkeypatch.setattr(farm, "GUARD_S", 0.2)
    with filelock.FileLock(farm._lease_folder() / f"{farm._key(UNIT)}.guard"):
        (found,) = farm.run_many([UNIT], lambda unit: farm.session(unit).__enter__())
    assert isinstance(found, DeviceError)
    assert found.reason == "busy" and "for 0.2 s" in found.message and ".guard" in (found.hint or "")


def test_other_units_are_not_affected() -> None:
    with farm.lease(UNIT), farm.lease(Unit("pixel", "adb", "X2"), wait_s=0):
        pass


def test_many_units_work_in_parallel_within_the_bound_and_answer_in_order() -> None:
    units = [Unit(f"u{index}", "adb", str(index)) for index in range(6)]
    running, most, lock = [0], [0], threading.Lock()

    def work(unit: Unit) -> str:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.02 * (6 - int(unit.place)))
        with lock:
            running[0] -= 1
        if unit.place == "3":
            raise DeviceError("gone", device=unit.name, reason="dropped")
        return unit.name

    results = farm.run_many(units, work, parallel=2)
    assert most[0] == 2
    assert [result if isinstance(result, str) else result.__class__ for result in results] == ["u0", "u1", "u2", DeviceError, "u4", "u5"]
    assert farm.run_many([], work) == []


def test_a_defect_is_not_mistaken_for_a_result() -> None:
    def broken(unit: Unit) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        farm.run_many([UNIT], broken)


def test_an_unknown_transport_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        farm.connect(Unit("x", "usb", "1"))
