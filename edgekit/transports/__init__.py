"""Ways to reach a device. Each module has `connect(address, options) -> Link`; transports do not know one another.

edgekit's own also say which addresses are theirs: `FORM` for people, and `check(place)`, which raises `UsageError` for a place that is none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a device says of itself.

    `identity` is stable over reconnects (`ro.serialno`, machine id). `runner` says what executes jobs there: `native` (the C runner, which the
    job folder must carry, built for `platform`), `python` (`edgekit.hostrun`), or `resident` (an app or firmware already there).
    `platform` is `linux-x86_64`, `linux-aarch64`, `android-arm64-v8a` or the like: what native code must be built for.
    `emulated` devices prove values, not latency.
    """

    identity: str
    os: str
    abi: str
    platform: str
    runner: str
    model: str = ""
    soc: str = ""
    os_build: str = ""
    cores: int | None = None
    memory_bytes: int | None = None
    emulated: bool = False
    accelerators: tuple[str, ...] = ()
    details: dict[str, str] = {}


class Link(Protocol):
    """A connection to one device."""

    def facts(self) -> Facts:
        """What the device is. Raises `DeviceError`."""

    def execute(self, job: Path, result: Path, timeout_s: float) -> None:
        """Carry the folder `job` to the device, run it there, and fill the empty folder `result`.

        The device must write `result.json` even when the run fails (status `failed`); such a result is returned, not raised.
        Raises `DeviceError` when the device could not be used, and leaves nothing in `result` then.
        """

    def close(self) -> None:
        """Give back what the link holds (a started virtual device, a forwarded port)."""
