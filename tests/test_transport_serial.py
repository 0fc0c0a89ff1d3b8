from __future__ import annotations

import binascii
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit import resources
from edgekit.errors import DeviceError, UsageError
from edgekit.job import Job, TensorFile, read_result
from edgekit.tensors import TensorSpec, write_raw
from edgekit.transports import framing, serial
from tests import jobs, micro_models
from tests.serial_lines import clean, firmware, line, noisy

FAST = {"answer_s": 0.1, "attempts": 60}
STEPS = 6


def job(folder: Path) -> Path:
    folder.mkdir()
    samples = []
    for i in range(STEPS):
        write_raw(folder / f"{i}a.raw", np.array([i, -i, 0], np.int8))
        write_raw(folder / f"{i}b.raw", np.array([[3, 5 * i]], np.int32))
        samples.append((TensorFile("a", "int8", (3,), f"{i}a.raw"), TensorFile("b", "int32", (1, 2), f"{i}b.raw")))
    outputs = (TensorSpec("y", (3,), "int8"), TensorSpec("total", (1,), "int32"))
    jobs.contract.write(folder, Job("micro-c", "model", tuple(samples), outputs))
    return folder


def check(result: Path) -> None:
    found = read_result(result)
    assert found.status == "ok", found.error
    made = jobs.outputs(result, found)
    assert [x["y"].tolist() for x in made] == [[-i, i, 0] for i in range(STEPS)]
    assert [int(x["total"][0]) for x in made] == [sum(15 * k for k in range(i + 1)) for i in range(STEPS)]


def cobs(data: bytes) -> bytes:
    """By the definition of the paper, one byte at a time."""
    out, block = b"", b""
    for byte in data:
        if byte == 0:
            out, block = out + bytes([len(block) + 1]) + block, b""
        else:
            block += bytes([byte])
            if len(block) == 254:
                out, block = out + b"\xff" + block, b""
    return out + bytes([len(block) + 1]) + block


class Device:
    """The peer of SERIAL.md, written from its text alone; `reset_at` are numbers of requests at which it forgets everything."""

    def __init__(self, reset_at: tuple[int, ...] = ()) -> None:
        self.reset_at, self.heard, self.runs_done, self.sessions, self.buffer = reset_at, 0, 0, 0, b""
        self.reset()

    def reset(self) -> None:
        self.session, self.last, self.runs, self.total = 0, (b"", b""), 0, 0
        self.inputs, self.outputs = [bytearray(3), bytearray(8)], [b"", b""]

    def hear(self, data: bytes) -> bytes:
        *blocks, self.buffer = (self.buffer + data).split(b"\0")
        return b"".join(self.answer(block) for block in blocks if block)

    def answer(self, block: bytes) -> bytes:
        body, at = b"", 0
        while at < len(block):
            code = block[at]
            run, at = block[at + 1 : at + code], at + code
            if len(run) != code - 1:
                return b""
            body += run + (b"\0" if code < 255 and at < len(block) else b"")
        if len(body) < 7 or binascii.crc32(body[:-4]).to_bytes(4, "little") != body[-4:]:
            return b""
        self.heard += 1
        if self.heard in self.reset_at:
            self.reset()
        if self.last[0] != body:
            kind, payload = self.work(body[2], body[3:-4])
            made = body[:2] + bytes([kind]) + payload
            self.last = (body, b"\0" + cobs(made + binascii.crc32(made).to_bytes(4, "little")) + b"\0")
        return self.last[1]

    def work(self, kind: int, data: bytes) -> tuple[int, bytes]:
        def u32(*values: int) -> bytes:
            return b"".join(value.to_bytes(4, "little") for value in values)

        def get(at: int, size: int = 4) -> int:
            return int.from_bytes(data[at : at + size], "little")

        if kind == 1:
            self.sessions += 1
            self.session, self.runs, self.total = 1000 + self.sessions, 0, 0
            return 129, data + u32(self.session, 1, 2, 2, 3, 8, 3, 4)
        if get(0) != self.session or not self.session:
            return 255, u32(2)
        if kind == 2:
            offset, chunk = get(5), data[9:]
            self.inputs[data[4]][offset : offset + len(chunk)] = chunk
            return 130, u32(offset + len(chunk))
        if kind == 3:
            if get(4) == self.runs:
                a, b = np.frombuffer(self.inputs[0], np.int8), np.frombuffer(self.inputs[1], "<i4")
                self.total += int(b[0] * b[1])
                self.outputs = [(-a).tobytes(), self.total.to_bytes(4, "little")]
                self.runs += 1
                self.runs_done += 1
            elif get(4) != self.runs - 1:
                return 255, u32(5)
            return 131, bytes(12)
        return 132, self.outputs[data[4]][get(5) : get(5) + get(9, 2)]


def execute(port: str, tmp_path: Path, **options: Any) -> Path:
    link = serial.connect(port, {**FAST, **options})
    result = tmp_path / "result"
    result.mkdir()
    try:
        link.execute(job(tmp_path / "job"), result, 30)
    finally:
        link.close()
    return result


@given(st.binary(max_size=700))
def test_cobs_agrees_with_its_definition(data: bytes) -> None:
    stuffed = framing.stuff(data)
    assert stuffed == cobs(data)
    assert 0 not in stuffed
    assert framing.unstuff(stuffed) == data


@given(st.binary(max_size=600))
def test_any_bytes_decode_or_are_dropped(data: bytes) -> None:
    receiver = framing.Receiver()
    receiver.feed(data)
    frame = framing.Frame(7, 3, b"\0x")
    assert frame in receiver.feed(framing.encode(frame)), "a sound frame after noise is heard"


@settings(max_examples=50)
@given(st.binary(max_size=256), st.integers(0, 65535), st.integers(0, 255), st.data())
def test_a_changed_frame_is_dropped(payload: bytes, sequence: int, kind: int, data: st.DataObject) -> None:
    wire = framing.encode(framing.Frame(sequence, kind, payload))
    at = data.draw(st.integers(1, len(wire) - 2))
    changed = wire[:at] + bytes([wire[at] ^ (1 << data.draw(st.integers(0, 7)))]) + wire[at + 1 :]
    assert framing.Receiver().feed(changed) == []
    assert framing.Receiver().feed(wire) == [framing.Frame(sequence, kind, payload)]


def test_a_clean_line_carries_all_samples(tmp_path: Path) -> None:
    device = Device()
    with line(device.hear) as port:
        check(execute(port, tmp_path))
    assert device.runs_done == STEPS


@pytest.mark.parametrize("seed", range(3))
def test_noise_loss_and_repetition_change_nothing(tmp_path: Path, seed: int) -> None:
    device, there, back = Device(), noisy(seed), noisy(seed + 100)
    with line(lambda data: back(device.hear(there(data)))) as port:
        check(execute(port, tmp_path, answer_s=0.05))
    assert device.runs_done == STEPS, "a lost answer must not run a model twice"


def test_a_reset_begins_the_stream_again(tmp_path: Path) -> None:
    device = Device(reset_at=(12, 40))
    with line(device.hear) as port:
        check(execute(port, tmp_path))
    assert device.sessions == 3


def test_a_device_that_resets_for_ever_is_an_error(tmp_path: Path) -> None:
    with line(Device(reset_at=tuple(range(3, 1000, 5))).hear) as port, pytest.raises(DeviceError) as caught:
        execute(port, tmp_path)
    assert caught.value.reason == "dropped"
    assert not list((tmp_path / "result").iterdir())


def test_silence_and_a_missing_port_are_told_apart(tmp_path: Path) -> None:
    with line(lambda data: b"") as port, pytest.raises(DeviceError) as caught:
        execute(port, tmp_path, attempts=3)
    assert caught.value.reason == "hung"
    with pytest.raises(DeviceError) as caught:
        serial.connect(str(tmp_path / "nothing"), {})
    assert caught.value.reason == "no-device"


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="unknown option"):
        serial.connect("/dev/null?bauds=9600", {})
    with pytest.raises(UsageError, match="baud"):
        serial.connect("/dev/null?baud=12345", {})


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed here")
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_firmwares_peer_speaks_the_same(tmp_path: Path, seed: int | None) -> None:
    model = micro_models.accumulator(tmp_path / "made")
    source = resources.directory("apps") / "mcu"
    program = tmp_path / "peer"
    files = [str(source / name) for name in ("link.c", "frame.c", "uart_host.c")]
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover", "-DEDGEKIT_BUFFER_BYTES=64"]
    subprocess.run(["gcc", *flags, f"-I{model}", f"-I{source}", *files, str(model / "edgekit_model.c"), "-o", str(program)], check=True)
    there, back = (clean, clean) if seed is None else (noisy(seed), noisy(seed + 50))
    with firmware(program, there, back) as (port, child):
        check(execute(port, tmp_path, answer_s=0.05))
        assert child.poll() is None, "a sanitizer ended the peer"
