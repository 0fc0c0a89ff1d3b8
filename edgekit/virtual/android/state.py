"""What the starter and the device's process tell each other, and what other processes find in the state folder."""

from __future__ import annotations

import msgspec

from edgekit.virtual.android.faults import Faults
from edgekit.virtual.android.options import DeviceOptions

REQUEST, LOCK, STATE, LOG = "request.json", "lock", "device.json", "log.txt"


class StartRequest(msgspec.Struct, frozen=True):
    """What the device's process is to be."""

    options: DeviceOptions
    faults: Faults


class Ready(msgspec.Struct, frozen=True):
    """The first line of the device's process: its port, or why there is none."""

    port: int = 0
    error: str = ""
    hint: str | None = None


class RunningDevice(msgspec.Struct, frozen=True):
    """A device that runs: `address` is what `adb connect` takes, `pid` the process to watch, `folder` its state folder.

    A `lasting` one outlives the process that started it; others belong to a test that runs now.
    """

    serial: str
    address: str
    pid: int
    model: str
    folder: str
    isolated: bool
    lasting: bool = False
