"""A serial port as a file: raw bytes, at a speed, on systems with termios."""

from __future__ import annotations

import os
import select

from edgekit.errors import UsageError
from edgekit.transports.failures import failure, reason_of


class Tty:
    """An open serial port. Raises `DeviceError`: `no-device`, `permission-denied`, `unsupported`, later `dropped`."""

    def __init__(self, path: str, baud: int) -> None:
        self.device = f"serial:{path}"
        try:
            import termios
        except ImportError as error:
            raise failure(self.device, "unsupported", "serial ports need a system with termios (Linux, macOS)") from error
        speed = getattr(termios, f"B{baud}", None)
        if speed is None:
            raise UsageError(f"{self.device}: this system has no speed of {baud} baud", "115200 is usual")
        try:
            self._file = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            reason = "no-device" if isinstance(error, FileNotFoundError) else reason_of(str(error))
            raise failure(self.device, reason, f"the port would not open: {error.strerror}", "check the name and the cable") from error
        try:
            settings = termios.tcgetattr(self._file)
            settings[:4] = [0, 0, termios.CS8 | termios.CREAD | termios.CLOCAL, 0]
            settings[4:6] = [speed, speed]
            termios.tcsetattr(self._file, termios.TCSANOW, settings)
        except termios.error as error:
            self.close()
            raise failure(self.device, "no-device", f"this is no serial port: {error.args[-1]}") from error

    def send(self, data: bytes, silence_s: float) -> None:
        """Write all of `data`. Raises `DeviceError` (`hung`) when the port takes nothing for `silence_s`."""
        view = memoryview(data)
        try:
            while view:
                if not select.select([], [self._file], [], silence_s)[1]:
                    raise failure(self.device, "hung", f"the port took no byte for {silence_s:g} s")
                view = view[os.write(self._file, view) :]
        except OSError as error:
            raise self._dropped(error) from error

    def receive(self, wait_s: float) -> bytes:
        """What has come in, after waiting for at most `wait_s`; may be nothing."""
        try:
            if not select.select([self._file], [], [], max(0.0, wait_s))[0]:
                return b""
            data = os.read(self._file, 4096)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise self._dropped(error) from error
        if not data:
            raise self._dropped(OSError(0, "end of file"))
        return data

    def close(self) -> None:
        """Close the port."""
        os.close(self._file)

    def _dropped(self, error: OSError) -> Exception:
        return failure(self.device, "dropped", f"the port is gone: {error.strerror}")
