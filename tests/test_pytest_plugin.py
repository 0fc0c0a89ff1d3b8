"""Bundles and virtual devices inside a user's own pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgekit import device, farm, tester
from edgekit.errors import DeviceError, UsageError
from edgekit.transports import virtual
from edgekit.virtual.android import Fault, Faults
from tests.android_fixtures import require_device
from tests.e2e import models


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.dense_bundle(tmp_path_factory.mktemp("bundle"))


def pytest_on(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_each_check_of_a_bundle_is_an_item(bundle: Path, tmp_path: Path) -> None:
    done = pytest_on(tmp_path, str(bundle), "--edgekit-device", "local:")
    assert done.returncode == 0, done.stdout
    assert "local:: parity.host.samples" in done.stdout


def test_a_device_that_cannot_be_used_is_a_failed_item_with_its_hint(bundle: Path, tmp_path: Path) -> None:
    done = pytest_on(tmp_path, str(bundle), "--edgekit-device", "adb:none?server_port=1")
    assert done.returncode == 1
    assert "usable" in done.stdout and "no adb server answers" in done.stdout and "hint: start it with" in done.stdout


def test_without_a_device_bundles_are_no_tests(bundle: Path, tmp_path: Path) -> None:
    assert pytest_on(tmp_path, str(bundle)).returncode in (4, 5)


USERS_TEST = """
import subprocess, sys
import pytest
from edgekit.virtual.android import Fault, Faults

@pytest.mark.parametrize("event", [Fault("push", "fail", text="No space left on device")])
def test_my_ci_survives(virtual_android, event):
    phone = virtual_android(faults=Faults(events=(event,)))
    assert phone.address.startswith("127.0.0.1:")
"""


def test_faults_are_parameters_of_a_users_test(tmp_path: Path) -> None:
    require_device()
    (tmp_path / "test_mine.py").write_text(USERS_TEST)
    done = pytest_on(tmp_path, "test_mine.py")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_a_fault_in_the_address_ends_in_its_typed_error(bundle: Path) -> None:
    require_device()
    faults = Faults(events=(Fault("push", "fail", text="No space left on device", times=None),))
    unit = device.Unit("phone", "virtual", "android-arm64", options={"faults": faults})
    (report,) = tester.test(bundle, [unit]).reports
    assert report.failure is not None and report.failure.reason == "disk-full"
    as_text = device.parse('virtual:android-arm64?faults={"read_only":true}')
    with farm.session(as_text) as link, pytest.raises(DeviceError) as raised:
        (bundle.parent / "job").mkdir()
        (bundle.parent / "job/runner").write_text("#!/system/bin/sh\n")
        (bundle.parent / "result").mkdir()
        link.execute(bundle.parent / "job", bundle.parent / "result", 10)
    assert raised.value.reason == "read-only"


def test_faults_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match="faults"):
        virtual.connect("android-arm64", {"faults": '{"events": [{"stage": "lunch"}]}'})
