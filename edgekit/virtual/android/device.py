"""The device that the links talk to: power, faults, and the services it offers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

from edgekit.virtual.android import forwards, place, shell, sync
from edgekit.virtual.android.faults import Armed, Fault, Faults, Stage
from edgekit.virtual.android.link import Link
from edgekit.virtual.android.options import DeviceOptions, properties
from edgekit.virtual.android.stream import Stream, StreamClosedError

_FEATURES = "shell_v2,cmd,stat_v2,ls_v2,sendrecv_v2,fixed_push_mkdir,fixed_push_symlink_timestamp"

Service = Callable[[Stream], None]


class Device:
    """A running device. It listens while it is switched on."""

    def __init__(self, options: DeviceOptions, faults: Faults) -> None:
        self.options = options
        self.armed = Armed(faults)
        self.address = (options.host, options.port)
        self._links: set[Link] = set()
        self._changing = threading.RLock()
        self._listener: socket.socket | None = None
        self._pacing = threading.Lock()
        self._link_free_at = 0.0
        place.restrict(faults, options)

    def power_on(self) -> None:
        """Listen. Raises `OSError` when the port is taken."""
        with self._changing:
            if self._listener is not None:
                return
            self._listener = socket.create_server(self.address, backlog=16)
            self.address = self._listener.getsockname()[:2]
            threading.Thread(target=self._listen, args=(self._listener,), daemon=True).start()

    def power_off(self, then_on_after_s: float | None = None) -> None:
        """Stop listening, cut all links, kill all programs; switch on again later where asked."""
        with self._changing:
            listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for link in list(self._links):
            link.cut()
        place.kill_programs()
        if then_on_after_s is not None:
            timer = threading.Timer(then_on_after_s, self.power_on)
            timer.daemon = True
            timer.start()

    @property
    def powered(self) -> bool:
        """Whether the device is switched on."""
        return self._listener is not None

    def set_faults(self, faults: Faults) -> None:
        """Replace all faults. Raises `UsageError` when this machine cannot show one of them."""
        place.restrict(faults, self.options)
        self.armed.set(faults)

    def lift(self, symptom: str) -> None:
        """Lift a one-shot fault that has shown itself by this error text."""
        if self.armed.lift(symptom):
            place.restrict(self.armed.faults, self.options)

    def check(self, stage: Stage, subject: str, link: Link) -> Fault | None:
        """Let an event that is due at the beginning happen; one that the service itself must act on (`kill`, `fail`) is returned."""
        fault = self.armed.due(stage, subject, 0)
        return self.suffer(fault, link) if fault else None

    def move(self, stage: Stage, subject: str, link: Link, moved_bytes: int, data: memoryview, carry: Callable[[memoryview], None]) -> Fault | None:
        """Carry `data`, after `moved_bytes` others, and let an event that is due within it happen at its very byte.

        An event that the service must act on is returned: nothing of `data` was carried then.
        """
        fault = self.armed.due(stage, subject, moved_bytes + len(data))
        if fault is None:
            carry(data)
            return None
        if fault.action in ("kill", "fail"):
            return fault
        passing = max(0, fault.after_bytes - moved_bytes)
        carry(data[:passing])
        self.suffer(fault, link)
        carry(data[passing:])
        return None

    def suffer(self, fault: Fault, link: Link) -> Fault | None:
        """Do to the link or the device what the fault says. Raises `StreamClosedError` when the link is gone by it."""
        if fault.action == "hang":
            link.hang(fault.lasts_s)
            return None
        if fault.action == "drop":
            link.cut()
        elif fault.action == "reboot":
            self.power_off(self.options.boot_s if fault.lasts_s is None else fault.lasts_s)
        elif fault.action == "power-off":
            self.power_off(fault.lasts_s)
        else:
            return fault
        raise StreamClosedError

    def pace(self, payload_bytes: int) -> None:
        """Hold a packet back as long as a slow link would."""
        rate = self.armed.faults.link_bytes_per_s
        if not rate or not payload_bytes:
            return
        with self._pacing:
            self._link_free_at = max(self._link_free_at, time.monotonic()) + payload_bytes / rate
            wait_s = self._link_free_at - time.monotonic()
        time.sleep(max(0.0, wait_s))

    def banner(self) -> str:
        """What the device says of itself in the handshake."""
        names = ("ro.product.name", "ro.product.model", "ro.product.device")
        shown = properties(self.options)
        return "device::" + "".join(f"{name}={shown[name]};" for name in names) + f"features={_FEATURES}"

    def service(self, link: Link, destination: str) -> Service | None:
        """What answers an OPEN of `destination`; None refuses it."""
        name, _, argument = destination.partition(":")
        kind, *flags = name.split(",")
        if kind in ("shell", "exec"):
            return partial(shell.serve, self, link, argument, "v2" in flags)
        fixed: dict[str, Service] = {
            "sync": partial(sync.serve, self, link),
            "reverse": partial(forwards.reverse, link, argument),
            "tcp": partial(forwards.connect, argument),
            "reboot": lambda _stream: self.power_off(self.options.boot_s),
            "root": lambda stream: stream.write(b"adbd is already running as root\n"),
            "remount": lambda stream: stream.write(b"remount failed\n"),
        }
        return fixed.get(kind)

    def forget(self, link: Link) -> None:
        """Take a link off the list: it has ended."""
        self._links.discard(link)

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            link = Link(self, connection)
            self._links.add(link)
            threading.Thread(target=link.serve, daemon=True).start()
