"""`ios:` by the real pymobiledevice3, against a stand-in for usbmuxd and a phone. Skipped where the package is not installed."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgekit import job
from edgekit.errors import DeviceError, RunnerError
from edgekit.job import Job, TensorFile
from edgekit.transports import folders, ios, ios_usb
from tests import coreml_packages as made
from tests.ios_phone import UDID, Phone

pytest.importorskip("pymobiledevice3")

Started = Callable[..., Phone]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Starts a phone, with the app's container in `tmp_path/phone`."""
    phones: list[Phone] = []
    monkeypatch.setenv("USBMUXD_SOCKET_ADDRESS", str(tmp_path / "usbmuxd"))
    monkeypatch.setenv("HOME", str(tmp_path))  # pairing records are kept there
    (tmp_path / "phone" / "Documents").mkdir(parents=True)

    def start(bundle: str = ios.BUNDLE, **options: bool) -> Phone:
        phones.append(Phone(tmp_path / "usbmuxd", tmp_path / "phone", bundle, **options))
        return phones[0]

    yield start
    for phone in phones:
        phone.close()


def test_a_phone_tells_what_it_is(started: Started) -> None:
    started()
    facts = ios.connect(UDID, {"tool": "pymobiledevice3"}).facts()
    assert (facts.identity, facts.model, facts.os_build, facts.abi) == (UDID, "iPhone14,2", "16.7 (20H19)", "arm64e")
    assert ios.connect("", {"tool": "pymobiledevice3"}).facts().identity == UDID


def test_files_go_there_and_come_back(started: Started, tmp_path: Path) -> None:
    started()
    phone = ios_usb.open(UDID, ios.BUNDLE)
    source, back = tmp_path / "source", tmp_path / "back"
    (source / "inner").mkdir(parents=True)
    back.mkdir()
    contents = {"a.raw": b"\0\1" * 70_000, "inner/b.raw": b"x"}
    for name, data in contents.items():
        (source / name).write_bytes(data)
    phone.put(source, "Documents/edgekit/run/job")
    there = tmp_path / "phone" / "Documents" / "edgekit" / "run" / "job"
    assert {name: (there / name).read_bytes() for name in contents} == contents
    assert phone.holds("Documents/edgekit/run/job/a.raw") and not phone.holds("Documents/edgekit/run/job/c.raw")
    phone.fetch("Documents/edgekit/run/job", back, 140_001)
    assert (back / "a.raw").read_bytes() == contents["a.raw"] and (back / "inner" / "b.raw").read_bytes() == b"x"
    phone.remove("Documents/edgekit/run")
    assert not there.parent.exists()


def test_a_phone_that_leaves_too_much_is_refused(started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = started().root / "Documents" / "edgekit" / "run" / "result"
    (left / "inner").mkdir(parents=True)
    (left / "a.raw").write_bytes(b"x" * 3_000)
    (left / "inner" / "b.raw").write_bytes(b"x" * 3_000)
    (left / "inner" / "endless").symlink_to("/dev/zero")
    phone, back = ios_usb.open(UDID, ios.BUNDLE), tmp_path / "back"
    back.mkdir()
    with pytest.raises(DeviceError, match="the run left more than 5999 bytes") as caught:
        phone.fetch("Documents/edgekit/run/result", back, 5_999)
    assert "result_bytes" in (caught.value.hint or "")
    monkeypatch.setattr(folders, "MAX_FILES", 3)
    with pytest.raises(RunnerError, match="more than 3 files"):
        phone.fetch("Documents/edgekit/run/result", back, 6_000)


def test_a_file_that_is_larger_than_the_phone_says_is_cut_off(started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A phone may say of a file what it likes: only what comes counts."""
    phone = started()
    left = phone.root / "Documents" / "run"
    left.mkdir()
    (left / "a.raw").write_bytes(b"x" * (3 << 20))
    monkeypatch.setattr(ios_usb, "CHUNK_BYTES", 1 << 16)
    monkeypatch.setattr(phone, "_size", lambda path: 10)
    back = tmp_path / "back"
    back.mkdir()
    with pytest.raises(DeviceError, match="the run left more than 100000 bytes"):
        ios_usb.open(UDID, ios.BUNDLE).fetch("Documents/run", back, 100_000)
    assert (back / "a.raw").stat().st_size <= 100_000 + (1 << 16)


def test_a_job_runs_through_the_library(started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only starting the app is stood in for: the runner of this machine answers from the container."""
    pytest.importorskip("torch")
    started()
    documents = tmp_path / "phone" / "Documents"

    def launch(self: Any, arguments: list[str]) -> None:
        asked, result = (documents / arguments[arguments.index(word) + 1] for word in ("--job", "--result"))
        result.mkdir()
        subprocess.run([sys.executable, "-m", "edgekit.hostrun", str(asked), str(result)], check=True)

    monkeypatch.setattr(ios_usb.UsbPhone, "launch", launch)
    folder, result = tmp_path / "job", tmp_path / "result"
    folder.mkdir()
    result.mkdir()
    made.one_operator(folder / "relu.mlpackage", "relu", {"x": ("float32", (1, 4))}, ("float32", (1, 4)))
    (folder / "x.raw").write_bytes(b"\0\0\x80\xbf" * 2 + b"\0\0\x80\x3f" * 2)
    x = TensorFile("x", "float32", (1, 4), "x.raw")
    job.write(folder, Job("coreml", "relu.mlpackage", ((x,),), (TensorFile("y", "float32", (1, 4), "").spec,), min_runs=0, warmup_runs=0))
    ios.connect(UDID, {"tool": "pymobiledevice3"}).execute(folder, result, 120)
    answer = job.read_result(result)
    assert answer.status == "ok", answer.error
    assert (result / answer.outputs[0][0].file).read_bytes() == b"\0" * 8 + b"\0\0\x80\x3f" * 2
    assert not list((documents / "edgekit").iterdir())


def reason(what: Callable[[], Any]) -> str:
    with pytest.raises(DeviceError) as caught:
        what()
    assert caught.value.hint
    return caught.value.reason


def test_what_goes_wrong_is_named(started: Started, tmp_path: Path) -> None:
    assert reason(ios_usb.open(UDID, ios.BUNDLE).describe) == "offline"
    phone = started("com.example.other", attached=False)
    assert reason(ios_usb.open("", ios.BUNDLE).describe) == "no-device"
    assert reason(ios_usb.open(UDID, ios.BUNDLE).describe) == "not-found"
    phone.attached = True
    assert reason(lambda: ios_usb.open(UDID, ios.BUNDLE).put(tmp_path, "Documents/x")) == "unsupported"


def test_starting_the_app_needs_a_tunnel_or_instruments(started: Started) -> None:
    """The stand-in has no instruments: what the library says of that is told, not hidden."""
    started()
    with pytest.raises(DeviceError) as caught:
        ios_usb.open(UDID, ios.BUNDLE).launch(["--job", "x"])
    assert caught.value.device == f"ios:{UDID}"


def test_the_library_has_what_is_called() -> None:
    from pymobiledevice3 import exceptions
    from pymobiledevice3.services.dvt.instruments.dvt_provider import DvtProvider
    from pymobiledevice3.services.dvt.instruments.process_control import ProcessControl
    from pymobiledevice3.tunneld.api import get_tunneld_device_by_udid

    inspect.signature(ProcessControl.launch).bind(None, "bundle", arguments=[], kill_existing=True)
    inspect.signature(DvtProvider).bind(None)
    inspect.signature(ProcessControl).bind(None)
    inspect.signature(get_tunneld_device_by_udid).bind(UDID)
    assert all(hasattr(kind, "__aenter__") for kind in (DvtProvider, ProcessControl))
    assert [name for name in ios_usb.REASONS if not hasattr(exceptions, name)] == []
