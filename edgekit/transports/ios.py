"""iPhones and iPads: `ios:UDID`. The runner app of `apps/ios` executes jobs; files go through its Documents folder.

Reached over USB by pymobiledevice3, or on a Mac by the developer tools' `devicectl` (option `tool`). Written from their documentation and code:
no phone was there to try it on.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from edgekit import interruption
from edgekit.job import RESULT_FILE
from edgekit.transports import Facts, folders, probe
from edgekit.transports.failures import Bytes, failure, parse_options

FORM = "ios:UDID"
BUNDLE = "io.edgekit.runner"
PLACE = "Documents/edgekit"
POLL_S = 0.5


class IosOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`bundle_id` is that of the installed runner app, which a developer team may have to change. `tool` reaches the phone.

    `result_bytes` is the most that is taken back from one run.
    """

    bundle_id: str = BUNDLE
    tool: Literal["auto", "pymobiledevice3", "devicectl"] = "auto"
    result_bytes: Bytes = 1 << 30


class Phone(Protocol):
    """What a tool does on one phone. Paths are relative to the app's container. All raise `DeviceError`."""

    def describe(self) -> dict[str, str]:
        """`UniqueDeviceID`, `ProductType`, `ProductVersion`, `BuildVersion`, `CPUArchitecture`, where they are known."""

    def put(self, folder: Path, place: str) -> None:
        """Copy a folder to the phone."""

    def launch(self, arguments: list[str]) -> None:
        """Start the app anew."""

    def holds(self, place: str) -> bool:
        """Whether a file is there."""

    def fetch(self, place: str, folder: Path, limit_bytes: int) -> None:
        """Copy a folder's regular files, and those of folders inside it, at most `limit_bytes` together, into the empty `folder`."""

    def remove(self, place: str) -> None:
        """Remove a folder from the phone."""


def check(place: str) -> None:
    """Any text may be a UDID; none is the only phone."""


def connect(address: str, options: Mapping[str, Any]) -> IosLink:
    """The phone with the UDID `address`, or the only one connected when it is empty.

    Raises `UsageError` for an unknown option, `MissingPackageError` without pymobiledevice3, `DeviceError` when the phone cannot be used.
    """
    chosen = parse_options(options, IosOptions, "ios")
    tool = chosen.tool if chosen.tool != "auto" else "devicectl" if sys.platform == "darwin" and shutil.which("xcrun") else "pymobiledevice3"
    if tool == "devicectl":
        from edgekit.transports import ios_devicectl

        return IosLink(ios_devicectl.open(address, chosen.bundle_id), address, chosen.result_bytes)
    from edgekit.transports import ios_usb

    return IosLink(ios_usb.open(address, chosen.bundle_id), address, chosen.result_bytes)


class IosLink:
    """A phone with the runner app."""

    def __init__(self, phone: Phone, address: str, result_bytes: int, wait: Callable[[float], None] = time.sleep) -> None:
        self._phone, self._result_bytes, self._wait, self._name = phone, result_bytes, wait, f"ios:{address}"

    def facts(self) -> Facts:
        """What the phone says of itself."""
        known = self._phone.describe()
        found = Facts(
            identity=known.get("UniqueDeviceID", ""),
            os="ios",
            abi=known.get("CPUArchitecture", "arm64"),
            platform="ios-arm64",
            runner="resident",
            model=known.get("ProductType", ""),
            os_build=f"{known.get('ProductVersion', '')} ({known.get('BuildVersion', '')})",
            accelerators=("cpu", "gpu", "ane", "all"),
        )
        return probe.bounded(found)

    def execute(self, job: Path, result: Path, timeout_s: float) -> None:
        """Run a job folder in the app. Raises `DeviceError`: `hung` when no result appears in time."""
        place = f"{PLACE}/{uuid.uuid4().hex}"
        try:
            self._phone.put(job, f"{place}/job")
            self._phone.launch(["--job", _inside(f"{place}/job"), "--result", _inside(f"{place}/result")])
            self._await(f"{place}/result/{RESULT_FILE}", timeout_s)
            with folders.received(result) as part:
                self._phone.fetch(f"{place}/result", part, self._result_bytes)
        finally:
            with contextlib.suppress(Exception):  # a phone that is gone cannot be cleaned; the first error is the one to tell
                self._phone.remove(place)

    def close(self) -> None:
        """Nothing is held."""

    def _await(self, file: str, timeout_s: float) -> None:
        waited = 0.0
        while not self._phone.holds(file):
            if waited >= timeout_s:
                what = f"the app wrote no result within {timeout_s:g} s"
                raise failure(self._name, "hung", what, "is the phone unlocked and the app in front? raise --timeout, or use a smaller model")
            interruption.check()
            self._wait(POLL_S)
            waited += POLL_S


def _inside(place: str) -> str:
    """The app's own paths start at Documents."""
    return re.sub("^Documents/", "", place)
