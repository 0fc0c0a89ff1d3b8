"""A running firmware: QEMU in a folder of its own, with two pipes that the firmware opens through semihosting (`apps/mcu/README.md`)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from edgekit.embed import c_text
from edgekit.errors import RunnerError
from edgekit.virtual.cortex_m import confinement
from edgekit.virtual.cortex_m.boards import Board, program
from edgekit.virtual.cortex_m.build import INTERFACE, Firmware, tensor_bytes

EMULATOR = "qemu-system-arm"
CALIBRATION_INSTRUCTIONS = 2_000_000
_MAGIC = 0x454B4D31
_RUN, _END = struct.pack("<I", 1), struct.pack("<I", 2)
_HEAD = struct.Struct("<IIQI")
_HELLO = struct.Struct("<5I")
_MODEL_ERROR, _FAULT, _STACK_OVERFLOW = 1, 2, 3


@dataclasses.dataclass(frozen=True)
class Inference:
    """One run on the core: the outputs' bytes, instructions executed, and the deepest the stack has been so far."""

    outputs: bytes
    instructions: int
    stack_bytes: int


def emulator() -> str:
    """The path of the emulator. Raises `MissingPackageError`."""
    return program(EMULATOR)


class Running:
    """A firmware on its emulated board, ready to be fed. Raises `RunnerError` (stage `prepare`) when it does not get that far."""

    def __init__(self, firmware: Firmware, board: Board, timeout_s: float = 300.0) -> None:
        self._timeout_s = timeout_s
        self._output_bytes = sum(tensor_bytes(spec) for spec in firmware.model.outputs)
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgekit-mcu-")))
            self._request, self._reply = (_pipe(folder / name, stack) for name in ("request", "reply"))
            talk = stack.enter_context((folder / "talk").open("w+b"))
            # one instruction is one nanosecond of the board's clock; no warp when the host is slow
            options = ["-nographic", "-monitor", "none", "-serial", "none", "-semihosting", "-icount", "shift=0"]
            confined, confining = confinement.words(emulator(), folder)
            command = [*confined, emulator(), "-M", board.machine, *board.options, *options, *confining, "-kernel", str(firmware.elf)]
            self._process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=talk, stderr=talk)
            stack.callback(self._kill)
            self._ticks, self.arena_bytes = self._greet(firmware)
            self._stack = stack.pop_all()

    def run(self, inputs: Sequence[bytes]) -> Inference:
        """One inference. Raises `RunnerError` (stage `invoke`) for a fault, an error of the model, a stack overflow or silence."""
        self._send(_RUN + b"".join(inputs))
        ticks, stack_bytes = self._head("invoke")
        outputs = self._take(self._output_bytes, "invoke")
        return Inference(outputs, ticks * CALIBRATION_INSTRUCTIONS // self._ticks, stack_bytes)

    def close(self) -> None:
        """End the firmware and remove its folder."""
        self._stack.close()

    def _greet(self, firmware: Firmware) -> tuple[int, int]:
        """Ticks of the calibration, and the arena that an interpreter used (0: there is none, or it does not tell)."""
        magic, interface, inputs, outputs, ticks = _HELLO.unpack(self._take(_HELLO.size, "prepare"))
        wanted = (_MAGIC, INTERFACE, len(firmware.model.inputs), len(firmware.model.outputs))
        if (magic, interface, inputs, outputs) != wanted or not ticks:
            text = f"the firmware says {inputs} inputs and {outputs} outputs, interface {interface}, but its description {wanted[2]} and {wanted[3]}"
            raise RunnerError(text, stage="model")
        arena_bytes, _ = self._head("prepare")
        return int(ticks), arena_bytes

    def _head(self, stage: str) -> tuple[int, int]:
        status, code, ticks, stack_bytes = _HEAD.unpack(self._take(_HEAD.size, stage))
        if status == _MODEL_ERROR:
            number = code - (code >> 31 << 32)
            known = c_text.ERRORS[-number - 1] if 0 < -number <= len(c_text.ERRORS) else "unknown"
            why = ": it is too small, or a kernel refuses the model" if known == "ARENA" else ""
            raise RunnerError(f"the model returned the error {number} ({known}{why})", stage=stage)
        if status == _FAULT:
            raise RunnerError(f"the core took a fault (CFSR {code:#010x}) at address {ticks:#010x}", stage=stage)
        if status == _STACK_OVERFLOW:
            raise RunnerError("the stack overflowed", "raise the option stack_bytes", stage=stage)
        return ticks, stack_bytes

    def _send(self, data: bytes) -> None:
        view, deadline = memoryview(data), time.monotonic() + self._timeout_s
        while view:
            if select.select([], [self._request], [], 0.2)[1]:
                view = view[os.write(self._request, view) :]
            self._watch(deadline, "invoke")

    def _take(self, size: int, stage: str) -> bytes:
        data, deadline = bytearray(), time.monotonic() + self._timeout_s
        while len(data) < size:
            if select.select([self._reply], [], [], 0.2)[0]:
                data += os.read(self._reply, size - len(data))
            else:
                self._watch(deadline, stage)
        return bytes(data)

    def _watch(self, deadline: float, stage: str) -> None:
        code = self._process.poll()
        if code is not None:
            raise RunnerError(f"the emulator ended with code {code}", stage=stage)
        if time.monotonic() > deadline:
            raise RunnerError(f"the emulated core did not answer within {self._timeout_s:g} s", stage=stage)

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _pipe(path: Path, stack: contextlib.ExitStack) -> int:
    os.mkfifo(path)
    # both ways, so that opening does not wait for the other side
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor
