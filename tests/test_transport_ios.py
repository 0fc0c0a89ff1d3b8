"""`ios:`: the order of a run on a phone (a folder stands in for the app's container), what is said when something is missing, the app's sources."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from edgekit import device, job, plugins, resources
from edgekit.errors import DeviceError, MissingPackageError, UsageError
from edgekit.job import Job, Result, TensorFile
from edgekit.transports import ios, ios_devicectl, ios_usb
from edgekit.transports.failures import failure

APP = resources.directory("apps") / "ios"


class Container:
    """The app's container on a disk of this machine; launching it answers the job after `delay` looks at the result."""

    def __init__(self, root: Path, delay: int = 0) -> None:
        self.root, self.delay, self.launched = root, delay, list[list[str]]()

    def describe(self) -> dict[str, str]:
        return {"UniqueDeviceID": "0000-1", "ProductType": "iPhone15,2", "ProductVersion": "17.5", "BuildVersion": "21F79"}

    def put(self, folder: Path, place: str) -> None:
        shutil.copytree(folder, self.root / place)

    def launch(self, arguments: list[str]) -> None:
        self.launched.append(arguments)
        place = self.root / "Documents" / arguments[arguments.index("--result") + 1]
        asked = job.read_job(self.root / "Documents" / arguments[arguments.index("--job") + 1])
        place.mkdir()
        (place / "000-0.raw").write_bytes(b"\0" * 4)
        job.write(place, Result("ok", outputs=((TensorFile(asked.outputs[0].name, "float32", (1,), "000-0.raw"),),)))

    def holds(self, place: str) -> bool:
        self.delay -= 1
        return self.delay < 0 and (self.root / place).is_file()

    def fetch(self, place: str, folder: Path, limit_bytes: int) -> None:
        shutil.copytree(self.root / place, folder, dirs_exist_ok=True)

    def remove(self, place: str) -> None:
        shutil.rmtree(self.root / place)


def folders(tmp_path: Path) -> tuple[Path, Path]:
    asked, result = tmp_path / "job", tmp_path / "result"
    asked.mkdir()
    result.mkdir()
    (asked / "x.raw").write_bytes(b"\0" * 4)
    spec = TensorFile("x", "float32", (1,), "x.raw")
    job.write(asked, Job("coreml", "m.mlpackage", ((spec,),), (spec.spec,)))
    return asked, result


def test_a_job_goes_there_and_its_result_comes_back(tmp_path: Path) -> None:
    phone = Container(tmp_path / "phone", delay=3)
    link = ios.IosLink(phone, "0000-1", 1 << 20, wait=lambda seconds: None)
    asked, result = folders(tmp_path)
    link.execute(asked, result, 60)
    assert job.read_result(result).status == "ok" and (result / "000-0.raw").is_file()
    assert not list((tmp_path / "phone" / "Documents" / "edgekit").iterdir())
    assert (link.facts().identity, link.facts().runner, link.facts().platform) == ("0000-1", "resident", "ios-arm64")


def test_an_app_that_does_not_answer_is_hung_and_leaves_nothing(tmp_path: Path) -> None:
    phone = Container(tmp_path / "phone", delay=10**6)
    asked, result = folders(tmp_path)
    with pytest.raises(DeviceError) as caught:
        ios.IosLink(phone, "0000-1", 1 << 20, wait=lambda seconds: None).execute(asked, result, 5)
    assert caught.value.reason == "hung" and list(result.iterdir()) == []
    assert not list((tmp_path / "phone" / "Documents" / "edgekit").iterdir())


def test_a_phone_that_is_gone_tells_the_first_error(tmp_path: Path) -> None:
    class Gone(Container):
        def launch(self, arguments: list[str]) -> None:
            raise failure("ios:0000-1", "dropped", "the phone is gone")

        def remove(self, place: str) -> None:
            raise OSError("no phone")

    asked, result = folders(tmp_path)
    with pytest.raises(DeviceError, match="the phone is gone"):
        ios.IosLink(Gone(tmp_path / "phone"), "0000-1", 1 << 20).execute(asked, result, 5)


def test_the_transport_is_found_by_name() -> None:
    assert plugins.load("edgekit.transports", device.parse("ios:00008110-0012").transport) is ios


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UsageError, match="bundle"):
        ios.connect("", {"bundle": "x"})


@pytest.mark.skipif(importlib.util.find_spec("pymobiledevice3") is not None, reason="pymobiledevice3 is here")
def test_what_is_missing_is_named() -> None:
    with pytest.raises(MissingPackageError) as caught:
        ios.connect("0000-1", {"tool": "pymobiledevice3"})
    assert caught.value.exit_code == 3 and caught.value.hint == "pip install 'edgekit[ios]'"


@pytest.mark.skipif(shutil.which("xcrun") is not None, reason="Xcode is here")
def test_devicectl_needs_xcode() -> None:
    with pytest.raises(MissingPackageError, match="no xcrun"):
        ios_devicectl.open("0000-1", ios.BUNDLE)


PHONE = """{"hardwareProperties": {"udid": "0000-1", "productType": "iPhone15,2", "cpuType": {"name": "arm64e"}},
 "deviceProperties": {"osVersionNumber": "17.5", "osBuildUpdate": null}, "connectionProperties": {"pairingState": "paired"}}"""


@pytest.fixture
def xcrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for Xcode's command: lists what `devices.json` holds, and copies what `container` does."""
    program = tmp_path / "bin" / "xcrun"
    program.parent.mkdir()
    program.write_text(f"""#!/bin/sh
for last; do :; done
case "$2 $3" in
  "list devices") cp '{tmp_path}/devices.json' "$last" ;;
  "device copy") cp -RP '{tmp_path}/container' "$last" ;;
esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    (tmp_path / "devices.json").write_text(f'{{"result": {{"devices": [{PHONE}, {{}}]}}}}')
    return tmp_path


def test_devicectl_s_list_is_read(xcrun: Path) -> None:
    assert ios_devicectl.open("", ios.BUNDLE).describe() == {
        "UniqueDeviceID": "0000-1", "ProductType": "iPhone15,2", "ProductVersion": "17.5", "CPUArchitecture": "arm64e",
    }  # fmt: skip
    assert ios_devicectl.open("0000-2", ios.BUNDLE).describe() == {"UniqueDeviceID": "0000-2"}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"result": {"devices": [{"hardwareProperties": 3}]}}', "\xff"])
def test_devicectl_s_list_that_cannot_be_read_is_told(xcrun: Path, text: str) -> None:
    (xcrun / "devices.json").write_text(text, "latin-1")
    with pytest.raises(DeviceError, match="devicectl's list of devices cannot be read"):
        ios_devicectl.open("", ios.BUNDLE)


def test_what_devicectl_copies_is_bounded_and_plain_files(xcrun: Path) -> None:
    (xcrun / "container" / "deep").mkdir(parents=True)
    (xcrun / "container" / "deep" / "a.raw").write_bytes(b"x" * 1000)
    (xcrun / "container" / "link").symlink_to("/etc/hostname")
    phone = ios_devicectl.open("0000-1", ios.BUNDLE)
    for name, limit_bytes in (("fits", 1000), ("not", 999)):
        (xcrun / name).mkdir()
        refused = contextlib.nullcontext() if name == "fits" else pytest.raises(DeviceError, match="more than 999 bytes")
        with refused:
            phone.fetch("Documents/x", xcrun / name, limit_bytes)
    assert [path.name for path in (xcrun / "fits").rglob("*") if path.is_file()] == ["a.raw"]
    assert list((xcrun / "not").iterdir()) == []


def test_every_known_failure_has_a_reason_and_a_way_out() -> None:
    assert all(reason and what and hint for reason, what, hint in ios_usb.REASONS.values())
    raised = ios_usb.UsbPhone("0000-1", ios.BUNDLE)._failed("DeveloperModeIsNotEnabledError", "")
    assert raised.reason == "unsupported" and "Developer Mode" in (raised.hint or "")


@pytest.mark.parametrize("file", [*sorted((APP / "Sources").glob("*.swift")), APP / "Package.swift"], ids=lambda file: file.name)
def test_the_app_s_sources_parse(file: Path) -> None:
    parsers = pytest.importorskip("tree_sitter"), pytest.importorskip("tree_sitter_swift")
    nodes: list[Any] = [parsers[0].Parser(parsers[0].Language(parsers[1].language())).parse(file.read_bytes()).root_node]
    while nodes:
        node = nodes.pop()
        assert node.type != "ERROR" and not node.is_missing, f"{file.name}:{node.start_point[0] + 1}"
        nodes += node.children


def test_the_project_names_only_what_it_holds() -> None:
    text = (APP / "EdgekitRunner.xcodeproj" / "project.pbxproj").read_text("utf-8")
    made = set(re.findall(r"^\t\t(EDCE\w{20})", text, re.MULTILINE))
    assert set(re.findall(r"EDCE\w{20}", text)) == made and text.count("{") == text.count("}") and text.count("(") == text.count(")")
    assert f'PRODUCT_BUNDLE_IDENTIFIER = "{ios.BUNDLE}"' in text and (APP / "Sources").is_dir()


def test_the_app_knows_every_stage_of_the_contract() -> None:
    text = (APP / "Sources" / "Job.swift").read_text("utf-8")
    assert {"job", "library", "model", "prepare", "input", "invoke", "output"} <= set(re.findall(r"case \.(\w+): return 1[0-6]", text))
