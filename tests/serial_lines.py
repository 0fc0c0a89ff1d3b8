"""Serial lines without a board: a pseudo-terminal, and noise on it."""

from __future__ import annotations

import contextlib
import os
import pty
import random
import select
import subprocess
import threading
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path


def noisy(seed: int) -> Callable[[bytes], bytes]:
    """A line that flips, loses, repeats and invents bytes, and now and then loses or repeats a whole burst."""
    rng = random.Random(seed)

    def pass_on(data: bytes) -> bytes:
        roll = rng.random()
        if roll < 0.08:
            return b""
        out = bytearray()
        for byte in data:
            fate = rng.random()
            if fate < 0.002:
                continue
            out.append(byte ^ (1 << rng.randrange(8)) if fate < 0.004 else byte)
            if fate > 0.998:
                out.append(rng.randrange(256))
        return bytes(out) * (2 if roll > 0.92 else 1)

    return pass_on


def clean(data: bytes) -> bytes:
    return data


@contextlib.contextmanager
def line(hear: Callable[[bytes], bytes]) -> Iterator[str]:
    """A pty whose other end is `hear`: bytes from the host -> bytes to the host."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    stop = threading.Event()

    def pump() -> None:
        while not stop.is_set():
            if select.select([master], [], [], 0.02)[0]:
                with contextlib.suppress(OSError):
                    answer = hear(os.read(master, 4096))
                    if answer:
                        os.write(master, answer)

    thread = threading.Thread(target=pump)
    thread.start()
    try:
        yield os.ttyname(slave)
    finally:
        stop.set()
        thread.join()
        os.close(master)
        os.close(slave)


@contextlib.contextmanager
def firmware(program: Path, there: Callable[[bytes], bytes], back: Callable[[bytes], bytes]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A program that speaks as firmware does on the pty it is given, behind a line that does `there` and `back` to the bytes: port and process."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    child = subprocess.Popen([str(program), os.ttyname(slave)])

    def hear(data: bytes) -> bytes:
        os.write(master, there(data))
        time.sleep(0.005)
        return back(os.read(master, 8192)) if select.select([master], [], [], 0.02)[0] else b""

    try:
        with line(hear) as port:
            yield port, child
    finally:
        child.kill()
        child.wait()
        os.close(master)
        os.close(slave)
