"""What can go wrong on a device, as frozen values, and the count of what has gone wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

import msgspec

Stage = Literal["connect", "push", "pull", "run"]
Action = Literal["drop", "hang", "reboot", "power-off", "kill", "fail"]
Story = tuple[tuple[float, int], ...]


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One event. It happens at `stage`, to a path or command that contains `match`, once `after_bytes` have moved there, or `after_s` later (runs).

    `drop` cuts the link; `hang` stops all answers on it, for `lasts_s` or until the host connects anew; `reboot` switches off and on again after
    `lasts_s` (default: the device's `boot_s`); `power-off` stays off (or for `lasts_s`); `kill` ends a run by signal 9, as the low-memory killer
    does; `fail` answers a push or pull with the error `text`, and refuses to start a run. `times` None means always.
    """

    stage: Stage
    action: Action
    match: str = ""
    after_bytes: int = 0
    after_s: float = 0.0
    lasts_s: float | None = None
    times: int | None = 1
    text: str = "Permission denied"


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All faults of a device; the default is a healthy one.

    `free_bytes` is what is left of the disk when the fault is set, `link_bytes_per_s` the speed of the link in both directions together.
    `noexec` is a data partition that runs no programs. With `one_shot`, `unauthorized`, `free_bytes`, `read_only` and `noexec` are lifted
    after the first push or run that they made fail, so that the next one passes. `temperature_mc` (milli-degrees Celsius, interpolated) and
    `clock_khz` (kept until the next point; 0 is the nominal clock) are stories: pairs of seconds since the story was set and a value.
    """

    events: tuple[Fault, ...] = ()
    unauthorized: bool = False
    link_bytes_per_s: float | None = None
    free_bytes: int | None = None
    read_only: bool = False
    noexec: bool = False
    one_shot: bool = False
    temperature_mc: Story = ((0.0, 35_000),)
    clock_khz: Story = ()

    @property
    def restricts_files(self) -> bool:
        """Whether the data partition is not as usual."""
        return self.free_bytes is not None or self.read_only or self.noexec


HEALTHY = Faults()

_SYMPTOMS = {
    "free_bytes": "No space left on device",
    "read_only": "Read-only file system",
    "noexec": "ermission denied",
    "unauthorized": "unauthorized",
}


class Armed:
    """The faults in force on a running device, with the counts of those that are spent."""

    def __init__(self, faults: Faults) -> None:
        self._lock = threading.Lock()
        self.fired: list[str] = []
        self.set(faults)

    def set(self, faults: Faults) -> None:
        """Replace all faults."""
        with self._lock:
            self.faults = faults
            self._left = [fault.times for fault in faults.events]

    def due(self, stage: Stage, subject: str, moved_bytes: int) -> Fault | None:
        """The event that happens once `moved_bytes` have moved, which is then spent."""
        return self._spend(stage, subject, lambda fault: not fault.after_s and moved_bytes >= fault.after_bytes)

    def due_now(self, stage: Stage, subject: str) -> Fault | None:
        """The event that has waited for its time, which is then spent."""
        return self._spend(stage, subject, lambda fault: fault.after_s > 0)

    def _spend(self, stage: Stage, subject: str, ready: Callable[[Fault], bool]) -> Fault | None:
        with self._lock:
            for index, fault in enumerate(self.faults.events):
                left = self._left[index]
                if fault.stage == stage and left != 0 and fault.match in subject and ready(fault):
                    self._left[index] = None if left is None else left - 1
                    self.fired.append(f"{fault.action} at {stage}: {subject}"[:200])
                    return fault
        return None

    def delay_s(self, stage: Stage, subject: str) -> float | None:
        """How long after the start the first event that waits for a time is due; None without one."""
        with self._lock:
            pairs = zip(self.faults.events, self._left, strict=True)
            return min((f.after_s for f, left in pairs if f.stage == stage and left != 0 and f.after_s and f.match in subject), default=None)

    def lift(self, symptom: str) -> bool:
        """Lift the one-shot fault that shows as `symptom` (an error text); whether there was one."""
        with self._lock:
            if not self.faults.one_shot:
                return False
            healthy = {
                field: getattr(HEALTHY, field)
                for field, text in _SYMPTOMS.items()
                if text in symptom and getattr(self.faults, field) != getattr(HEALTHY, field)
            }
            self.faults = msgspec.structs.replace(self.faults, **healthy)
            self.fired.extend(healthy)
            return bool(healthy)
