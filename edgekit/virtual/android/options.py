"""What a virtual device is: its identity, processor and properties."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

LITTLE_KHZ, BIG_KHZ = 1_800_000, 2_400_000
_MAX_CORES = 8


class DeviceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device to start.

    An empty `serial` is chosen, `port` 0 is any free one, and `cores` 0 is as many as this machine has (8 at most; the upper half are big
    cores). More cores than the machine has can be shown, but a program that binds itself to one of them fails. `properties` are added to the
    Android properties or replace them. With `accept_any_key` the device asks for a key and takes any; without, it asks for none.
    `data_bytes` is the size of the data partition, which lives in memory; `boot_s` is how long a reboot takes. With `dies_with_parent` the
    device ends when the process that started it ends. `isolated` None takes namespaces of its own where the machine allows them, True insists
    on them, and False (root only) does without, by a copy of the userland.
    """

    serial: str = ""
    model: str = "Edgekit Virtual arm64"
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    cores: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    properties: dict[str, str] = {}
    accept_any_key: bool = False
    sdcard_noexec: bool = True
    data_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] = 2 << 30
    boot_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 1.0
    dies_with_parent: bool = True
    isolated: bool | None = None


def core_count(options: DeviceOptions) -> int:
    """How many cores the device shows."""
    return options.cores or min(_MAX_CORES, len(os.sched_getaffinity(0)))


def nominal_clocks_khz(cores: int) -> tuple[int, ...]:
    """The nominal clock of each core: little cores first, then big ones."""
    return tuple(BIG_KHZ if core >= cores // 2 else LITTLE_KHZ for core in range(cores))


def properties(options: DeviceOptions) -> dict[str, str]:
    """The Android properties that `getprop` shows."""
    defaults = {
        "ro.build.fingerprint": "edgekit/virtual_arm64/virtual:14/EK1.0/1:userdebug/test-keys",
        "ro.build.version.release": "14",
        "ro.build.version.sdk": "34",
        "ro.hardware": "virtual",
        "ro.kernel.qemu": "1",
        "ro.product.brand": "edgekit",
        "ro.product.cpu.abi": "arm64-v8a",
        "ro.product.cpu.abilist": "arm64-v8a",
        "ro.product.device": "virtual",
        "ro.product.manufacturer": "edgekit",
        "ro.product.model": options.model,
        "ro.product.name": "virtual_arm64",
        "ro.serialno": options.serial,
        "ro.soc.manufacturer": "QEMU",
        "ro.soc.model": "qemu-aarch64",
        "sys.boot_completed": "1",
    }
    return dict(sorted((defaults | options.properties).items()))
