"""A virtual Android device: a daemon that real adb servers accept, over an arm64 userland run by qemu.

`install()` once (it downloads), then `start()` or `with device() as phone:` and `adb connect` to `phone.address`. Faults are frozen values that
can be given at the start or set on a running device. A program's speed on it is the emulator's, never that of a phone.
"""

from __future__ import annotations

from edgekit.virtual.android.control import State
from edgekit.virtual.android.faults import HEALTHY, Fault, Faults
from edgekit.virtual.android.options import DeviceOptions
from edgekit.virtual.android.process import device, power, running, set_faults, start, state, stop
from edgekit.virtual.android.rootfs import install, installed, missing
from edgekit.virtual.android.state import RunningDevice

__all__ = [
    "HEALTHY",
    "DeviceOptions",
    "Fault",
    "Faults",
    "RunningDevice",
    "State",
    "device",
    "install",
    "installed",
    "missing",
    "power",
    "running",
    "set_faults",
    "start",
    "state",
    "stop",
]
