"""One virtual Android device: `python -m edgekit.virtual.android FOLDER USERLAND`, started by `edgekit.virtual.android.start`.

FOLDER holds `request.json`. One JSON line on stdout says that the device listens, or why it does not. The process ends on SIGTERM, on a
request over the control socket, and, where the options say so, when its stdin ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from edgekit.errors import EdgekitError
from edgekit.virtual.android import control, place, story
from edgekit.virtual.android.device import Device
from edgekit.virtual.android.options import core_count, nominal_clocks_khz
from edgekit.virtual.android.state import LOCK, REQUEST, Ready, StartRequest


def main(folder: Path, userland: Path) -> int:
    """Be the device until told to stop. Returns the exit code."""
    lock = (folder / LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)  # held as long as this process lives
    request = msgspec.json.decode((folder / REQUEST).read_bytes(), type=StartRequest)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        listener = control.listen(folder)
        root = folder / "root"
        root.mkdir()
        place.enter(root, userland, request.options)
        device = Device(request.options, request.faults)
        device.power_on()
    except (EdgekitError, OSError) as error:
        _say(Ready(error=str(error), hint=getattr(error, "hint", None)))
        return 1
    clocks = nominal_clocks_khz(core_count(request.options))
    threading.Thread(target=story.follow, args=(lambda: device.armed.faults, Path("/sys"), clocks, stopping), daemon=True).start()
    threading.Thread(target=control.answer, args=(listener, device, stopping.set), daemon=True).start()
    if request.options.dies_with_parent:
        threading.Thread(target=_await_parent, args=(stopping,), daemon=True).start()
    _say(Ready(port=device.address[1]))
    stopping.wait()
    device.power_off()
    return 0


def _await_parent(stopping: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    stopping.set()


def _say(ready: Ready) -> None:
    sys.stdout.write(msgspec.json.encode(ready).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(code)  # threads may still wait for a peer that will never answer
