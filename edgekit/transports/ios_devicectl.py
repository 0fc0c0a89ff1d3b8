"""A phone by `xcrun devicectl`, the command of Xcode 15 and later."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

from edgekit.errors import DeviceError, MissingPackageError
from edgekit.transports import folders
from edgekit.transports.failures import failure, last_line, too_much

TIMEOUT_S = 300
WORDS = (
    ("not installed", "unsupported", "the runner app is not installed", "build apps/ios/EdgekitRunner.xcodeproj and install it"),
    ("developer mode", "unsupported", "developer mode is off", "switch it on: Settings, Privacy & Security, Developer Mode"),
    ("locked", "unauthorized", "the phone is locked", "unlock it"),
    ("not found", "not-found", "there is no such phone", "'xcrun devicectl list devices' lists those that are there"),
)


def open(udid: str, bundle_id: str) -> Devicectl:
    """The phone `udid`. Raises `MissingPackageError` without Xcode's tools, `DeviceError` when none is connected or several are."""
    if shutil.which("xcrun") is None:
        raise MissingPackageError("devicectl needs Xcode's command line tools, and there is no xcrun here", "xcode-select --install")
    return Devicectl(udid or _only_one(), bundle_id)


class Devicectl:
    """One phone."""

    def __init__(self, udid: str, bundle_id: str) -> None:
        self._udid = udid
        self._container = ["--device", udid, "--domain-type", "appDataContainer", "--domain-identifier", bundle_id]
        self._bundle = bundle_id

    def describe(self) -> dict[str, str]:
        """Model and system."""
        found = next((phone for phone in _phones() if phone.hardware_properties.udid == self._udid), _Phone())
        hardware, system = found.hardware_properties, found.device_properties
        named = {
            "UniqueDeviceID": self._udid,
            "ProductType": hardware.product_type,
            "ProductVersion": system.os_version_number,
            "BuildVersion": system.os_build_update,
            "CPUArchitecture": hardware.cpu_type.name,
        }
        return {name: value for name, value in named.items() if value}

    def put(self, folder: Path, place: str) -> None:
        """Copy a folder into the app's container."""
        self._run("device", "copy", "to", *self._container, "--source", str(folder), "--destination", place)

    def launch(self, arguments: list[str]) -> None:
        """Start the app anew."""
        self._run("device", "process", "launch", "--terminate-existing", "--device", self._udid, self._bundle, *arguments)

    def holds(self, place: str) -> bool:
        """Whether a file can be copied from the container."""
        with tempfile.TemporaryDirectory() as scratch:
            try:
                self._run("device", "copy", "from", *self._container, "--source", place, "--destination", str(Path(scratch, "file")))
            except DeviceError as error:
                if error.reason == "unauthorized":
                    raise
                return False
        return True

    def fetch(self, place: str, folder: Path, limit_bytes: int) -> None:
        """Copy a folder from the container. devicectl takes no bound: what is too much is refused when it is here."""
        with tempfile.TemporaryDirectory() as scratch:
            self._run("device", "copy", "from", *self._container, "--source", place, "--destination", str(Path(scratch, "result")))
            files = [path for path in sorted(Path(scratch, "result").rglob("*")) if path.is_file() and not path.is_symlink()]
            folders.check_count(len(files))
            if sum(path.stat().st_size for path in files) > limit_bytes:
                raise too_much(f"ios:{self._udid}", limit_bytes)
            for path in files:
                target = folder / path.relative_to(Path(scratch, "result"))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)

    def remove(self, place: str) -> None:
        """Nothing: devicectl has no command for it; the app clears old runs when it starts."""

    def _run(self, *arguments: str) -> None:
        _devicectl(list(arguments), f"ios:{self._udid}")


class _Cpu(msgspec.Struct, frozen=True):
    name: str | None = None


class _Hardware(msgspec.Struct, frozen=True, rename="camel"):
    udid: str | None = None
    product_type: str | None = None
    cpu_type: _Cpu = _Cpu()


class _System(msgspec.Struct, frozen=True, rename="camel"):
    os_version_number: str | None = None
    os_build_update: str | None = None


class _Connection(msgspec.Struct, frozen=True, rename="camel"):
    pairing_state: str | None = None


class _Phone(msgspec.Struct, frozen=True, rename="camel"):
    hardware_properties: _Hardware = _Hardware()
    device_properties: _System = _System()
    connection_properties: _Connection = _Connection()


class _Phones(msgspec.Struct, frozen=True):
    devices: tuple[_Phone, ...]


class _Listing(msgspec.Struct, frozen=True):
    result: _Phones


def _phones() -> tuple[_Phone, ...]:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "devices.json")
        _devicectl(["list", "devices", "--json-output", str(path)], "ios:")
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Listing).result.devices
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            raise failure("ios:", "failed", f"devicectl's list of devices cannot be read: {error}", "is this Xcode 15 or later?") from error


def _only_one() -> str:
    paired = [phone.hardware_properties.udid for phone in _phones() if phone.connection_properties.pairing_state == "paired"]
    udids = [udid for udid in paired if udid]
    if len(udids) != 1:
        what = f"{len(udids)} phones are paired: {', '.join(udids)}" if udids else "no phone is paired"
        raise failure("ios:", "several-devices" if udids else "no-device", what, "name one: ios:UDID" if udids else "plug one in and unlock it")
    return udids[0]


def _devicectl(arguments: list[str], device: str) -> None:
    try:
        done = subprocess.run(["xcrun", "devicectl", *arguments], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)  # noqa: S607  (Xcode decides where xcrun lies)
    except subprocess.TimeoutExpired as error:
        raise failure(device, "hung", f"devicectl {arguments[0]} did not end within {TIMEOUT_S} s") from error
    if done.returncode:
        said = done.stderr + done.stdout
        row = next((row for row in WORDS if row[0] in said.lower()), None)
        reason, what, hint = row[1:] if row else ("failed", last_line(done.stderr) or f"devicectl ended with {done.returncode}", None)
        raise failure(device, reason, what, hint)
