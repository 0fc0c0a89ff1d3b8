"""Requests to resident firmware, each repeated until it is answered: the host's side of `apps/mcu/SERIAL.md`."""

from __future__ import annotations

import dataclasses
import struct
import time
from collections.abc import Sequence

from edgekit import interruption
from edgekit.errors import RunnerError
from edgekit.transports import framing
from edgekit.transports.failures import failure
from edgekit.transports.framing import Frame
from edgekit.transports.tty import Tty

INTERFACE = 1
_HELLO, _INPUT, _RUN, _OUTPUT = 1, 2, 3, 4
_ANSWER, _ERROR = 128, 255
_SESSION, _MODEL = 2, 4
_CHUNK = framing.PAYLOAD_MAX - 9
_MAX_TENSORS = 16
_ERRORS = {1: "malformed request", 3: "out of range", 5: "out of turn"}


class SessionLostError(Exception):
    """The device was reset: what it knew is gone."""


@dataclasses.dataclass(frozen=True)
class Hello:
    """What the firmware says: its session, and the bytes of each input and output."""

    session: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Peer:
    """Resident firmware at a port. Each request is sent at most `attempts` times, `answer_s` apart."""

    def __init__(self, tty: Tty, answer_s: float, attempts: int) -> None:
        self._tty, self._answer_s, self._attempts = tty, answer_s, attempts
        self._receiver = framing.Receiver()
        # where the last host left off is unknown: the time makes a repeated number unlikely
        self._sequence = time.monotonic_ns() >> 10 & 0xFFFF

    def hello(self) -> Hello:
        """Start a session; the model's state is reset. Raises `DeviceError` (`hung`, `corrupt`, `unsupported`)."""
        nonce = struct.pack("<I", time.monotonic_ns() & 0xFFFFFFFF)
        answer = self._ask(_HELLO, nonce, self._answer_s)
        if len(answer) < 20 or answer[:4] != nonce:
            raise failure(self._tty.device, "corrupt", "the answer to hello is malformed")
        _, session, interface, inputs, outputs = struct.unpack_from("<5I", answer)
        if interface != INTERFACE:
            raise failure(self._tty.device, "unsupported", f"the firmware has interface {interface}, not {INTERFACE}", "flash it again")
        count = inputs + outputs
        if not (1 <= inputs <= _MAX_TENSORS and 1 <= outputs <= _MAX_TENSORS and len(answer) == 20 + 4 * count):
            raise failure(self._tty.device, "corrupt", f"the firmware says {inputs} inputs and {outputs} outputs in {len(answer)} bytes")
        sizes = struct.unpack_from(f"<{count}I", answer, 20)
        return Hello(session, sizes[:inputs], sizes[inputs:])

    def run(self, hello: Hello, number: int, inputs: Sequence[bytes], timeout_s: float) -> tuple[list[bytes], int]:
        """Run `number` (from 0) of a session: the outputs, and the ticks it took (0: not measured).

        Raises `SessionLostError` when the device was reset, `RunnerError` when the model failed, `DeviceError` when it does not answer.
        """
        session = struct.pack("<I", hello.session)
        for index, data in enumerate(inputs):
            for at in range(0, len(data), _CHUNK):
                self._ask(_INPUT, session + struct.pack("<BI", index, at) + data[at : at + _CHUNK], self._answer_s)
        answer = self._ask(_RUN, session + struct.pack("<I", number), timeout_s)
        if len(answer) != 12:
            raise failure(self._tty.device, "corrupt", f"the answer to a run has {len(answer)} bytes, not 12")
        return [self._output(session, index, size) for index, size in enumerate(hello.outputs)], struct.unpack_from("<Q", answer)[0]

    def _output(self, session: bytes, index: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            count = min(framing.PAYLOAD_MAX, size - len(data))
            part = self._ask(_OUTPUT, session + struct.pack("<BIH", index, len(data), count), self._answer_s)
            if len(part) != count:
                raise failure(self._tty.device, "corrupt", f"output {index}: {len(part)} bytes came instead of {count}")
            data += part
        return data

    def _ask(self, kind: int, payload: bytes, timeout_s: float) -> bytes:
        """The answer's payload. A run may take `timeout_s`, but a request that was lost is repeated sooner: that does not run twice."""
        self._sequence = (self._sequence + 1) & 0xFFFF
        request = Frame(self._sequence, kind, payload)
        for _ in range(max(self._attempts, int(timeout_s / self._answer_s))):
            self._tty.send(framing.encode(request), self._answer_s * self._attempts)
            answer = self._wait(request)
            if answer is not None:
                return self._checked(answer)
            interruption.check()
        raise failure(self._tty.device, "hung", f"no answer to request {kind} after {self._attempts} attempts", "is the firmware running?")

    def _wait(self, request: Frame) -> Frame | None:
        deadline = time.monotonic() + self._answer_s
        while (left := deadline - time.monotonic()) > 0:
            for frame in self._receiver.feed(self._tty.receive(left)):
                if frame.sequence == request.sequence and frame.kind in (request.kind | _ANSWER, _ERROR):
                    return frame
        return None

    def _checked(self, answer: Frame) -> bytes:
        if answer.kind != _ERROR:
            return answer.payload
        code = int.from_bytes(answer.payload[:4], "little")
        if code == _SESSION:
            raise SessionLostError
        if code == _MODEL:
            raise RunnerError("the model returned an error on the device", stage="invoke")
        raise failure(self._tty.device, "unsupported", f"the firmware refused a request: {_ERRORS.get(code, code)}", "flash firmware of this edgekit")
