"""What adb, its server and adbutils say when something is wrong, as the one `DeviceError` for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgekit.errors import FULL, DeviceError
from edgekit.transports.failures import failure, reason_of

_BY_TEXT = (
    ("unauthorized", "unauthorized"),
    ("authorizing", "unauthorized"),
    ("failed to authenticate", "unauthorized"),
    ("device offline", "offline"),
    ("device still connecting", "offline"),
    ("more than one", "several-devices"),
    ("no devices", "no-device"),
    ("not found", "not-found"),
    ("no permissions", "permission-denied"),
    ("connection refused", "powered-off"),
    ("no route to host", "powered-off"),
    ("timed out", "powered-off"),
    ("connect to adb server failed", "server-missing"),
)

_SERVER_WENT = "another adb program, perhaps of another version, may have stopped it: use one adb program, or a port of your own (option server_port)"


def reason_of_adb(text: str) -> str:
    """The reason word in a message of the adb server, for a device not yet in use."""
    folded = text.lower()
    return next((reason for words, reason in _BY_TEXT if words in folded), reason_of(text, "dropped"))


@contextmanager
def translated(device: str, doing: str) -> Iterator[None]:
    """Turn whatever adbutils and its sockets raise into a `DeviceError`. A device in use that goes offline or missing has `dropped`."""
    import adbutils
    from adbutils.errors import AdbConnectionError

    try:
        yield
    except DeviceError:
        raise
    except (TimeoutError, adbutils.AdbTimeout) as error:
        raise failure(device, "hung", f"no answer while {doing}") from error
    except AdbConnectionError as error:
        raise failure(device, "server-missing", f"the adb server went away while {doing}", _SERVER_WENT) from error
    except adbutils.AdbError as error:
        text = " ".join(str(part) for part in error.args if part)
        reason = reason_of_adb(text)
        reason = "dropped" if reason in ("offline", "not-found", "no-device") else reason
        raise failure(device, reason, f"{_plain(text)} while {doing}") from error
    except (EOFError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in FULL:  # this machine's disk, not the device's, which is told in words
            raise
        raise failure(device, "dropped", f"the link broke while {doing} ({str(error) or type(error).__name__})") from error


def _plain(text: str) -> str:
    return "the link broke" if not text or text.startswith("Unknown data") or text == "closed" else text.splitlines()[0]
