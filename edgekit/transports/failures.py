"""Every way a device can fail, as one stable word with a hint; and the options that bound how long and how often a transport tries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from edgekit.errors import DeviceError, UsageError, close_match

HINTS = {
    "unauthorized": "unlock the device and accept this computer's key; over ssh, install the key with ssh-copy-id",
    "offline": "replug the device or restart its adb (or ssh) service, then try again",
    "several-devices": "name one: adb:SERIAL",
    "no-device": "plug a device in and allow USB debugging, name one as adb:HOST:PORT, or use virtual:android-arm64",
    "dropped": "check cable, hub or network; a device that drops in every run may restart under the load",
    "disk-full": "free space on the device, or clear edgekit's cache there: edgekit devices clear DEVICE",
    "read-only": "the folder edgekit works in cannot be written; name another with the option base",
    "hung": "the device stopped answering: restart it, or give it more time",
    "powered-off": "is the device switched on and reachable?",
    "killed": "out of memory is the usual cause: close apps, use a smaller model or precision, or a device with more memory",
    "permission-denied": "the device refused access to a file or its execution",
    "server-missing": "start it with 'adb start-server' (or set the option start_server), and check ANDROID_ADB_SERVER_PORT",
    "server-version": "stop the other adb server with its own 'adb kill-server', or use another port (option server_port)",
    "not-found": "'adb devices' lists what is connected",
    "corrupt": "bytes changed on the way or on the device's storage; try again, then suspect cable and storage",
    "wrong-platform": "the runner was built for another processor or system than this device's",
    "unsupported": "this device lacks something edgekit needs",
    "plug-in": "this is a fault of the plug-in, neither edgekit's nor the device's: tell its authors, or use another transport",
}

# Nobody is on the other side to clean up with.
DEAD = frozenset({"powered-off", "offline", "unauthorized", "server-missing", "server-version", "not-found", "no-device"})

_BY_TEXT = (
    ("no space left", "disk-full"),
    ("disk quota exceeded", "disk-full"),
    ("file too large", "disk-full"),
    ("read-only file system", "read-only"),
    ("permission denied", "permission-denied"),
    ("operation not permitted", "permission-denied"),
    ("exec format error", "wrong-platform"),
    ("not executable", "wrong-platform"),
    ("cannot execute binary", "wrong-platform"),
)


LONGEST_S = 1e6
Seconds = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_S)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds that every transport keeps.

    `stall_s`: longest silence of a transfer or a short command. `reconnect_s`: how long a dropped device may take to come back. `retries`: how
    often dropped work is done again. `cache_bytes`: the cache on the device. `stale_s`: age at which a run folder of an unknown owner is removed.
    `result_bytes`: the most that is taken back from one run. `base`: the folder on the device, of the transport's choice when empty.
    """

    stall_s: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_S)] = 20.0
    reconnect_s: Seconds = 10.0
    retries: Annotated[int, msgspec.Meta(ge=0, le=100)] = 1
    cache_bytes: Bytes = 2 << 30
    stale_s: Seconds = 6 * 3600.0
    result_bytes: Bytes = 1 << 30
    base: str = ""


class Retry(msgspec.Struct, frozen=True):
    """Work that was done again: in which stage the link failed, and how."""

    stage: str
    reason: str
    message: str


T = TypeVar("T", bound=msgspec.Struct)


def parse_options(options: Mapping[str, Any], kind: type[T], transport: str) -> T:
    """Options of a transport, as text or as TOML values, in their types. Raises `UsageError` naming an unknown or malformed one."""
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    for name in options:
        if name not in known:
            raise UsageError(f"{transport}: unknown option {name!r}", close_match(name, known))
    try:
        return msgspec.convert(dict(options), kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{transport}: {error}") from error


def failure(device: str, reason: str, what: str, hint: str | None = None) -> DeviceError:
    """The one error for `reason` on `device`."""
    return DeviceError(f"{device}: {what}", hint or HINTS.get(reason), device=device, reason=reason)


def too_much(device: str, limit_bytes: int) -> DeviceError:
    """The error for a run that left more than is taken back."""
    return failure(device, "unsupported", f"the run left more than {limit_bytes} bytes", "see the option result_bytes")


def reason_of(text: str, default: str = "failed") -> str:
    """The reason word in a system's error text."""
    folded = text.lower()
    return next((reason for words, reason in _BY_TEXT if words in folded), default)


def last_line(text: str) -> str:
    """The last line that says something, shortened: what to quote of a device's talk."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
