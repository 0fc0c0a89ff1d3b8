"""Runs on several devices are told to end: at once, and each leaves its device as it found it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edgekit import farm, interruption
from edgekit.device import Unit
from edgekit.transports import Link, local
from tests import shell_runner
from tests.ssh_board import Board, board

__all__ = ["board"]  # a fixture

WAITS = "echo $$ > '{folder}/pid'; sleep 60"
PROGRAM = """
import sys, tempfile
from pathlib import Path
from edgekit import farm
from edgekit.device import Unit
from edgekit.transports import local
from tests import shell_runner
def work(unit):
    job, result = Path(unit.place, "job"), Path(unit.place, "result")
    local.connect("", {"runner": "native"}).execute(job, result, 60)
farm.run_many([Unit(place, "local", place) for place in sys.argv[1:]], work)
"""


def runs(folder: Path) -> bool:
    try:
        os.kill(int((folder / "pid").read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


def until(holds: Callable[[], bool], limit_s: float = 15) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def prepared(tmp_path: Path, names: tuple[str, ...]) -> dict[str, Path]:
    for name in names:
        job, _ = shell_runner.make(tmp_path / name, do=WAITS.format(folder=tmp_path / name), shell="/bin/sh")
        (job / "runner").chmod(0o755)
    return {name: tmp_path / name for name in names}


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_ctrl_c_ends_every_run_at_once(names: tuple[str, ...], tmp_path: Path) -> None:
    folders = prepared(tmp_path, names)
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, *map(str, folders.values())], env=environment, stderr=subprocess.DEVNULL) as process:
        until(lambda: all(runs(folder) for folder in folders.values()))
        process.send_signal(signal.SIGINT)
        assert process.wait(10) != 0
    assert not any(runs(folder) for folder in folders.values())
    assert [path.name for folder in folders.values() for path in folder.iterdir() if path.name.startswith(".")] == []


def stopped_while_waiting(links: dict[str, Link], folders: dict[str, Path]) -> float:
    """Run a job on each link, and give up once all of them wait; the seconds until all have ended."""
    started = [0.0]

    def work(unit: Unit) -> None:
        if unit.name == "stop":
            until(lambda: all(runs(folder) for folder in folders.values()))
            started[0] = time.monotonic()
            raise ZeroDivisionError
        links[unit.name].execute(folders[unit.name] / "job", folders[unit.name] / "result", 60)

    with pytest.raises(ZeroDivisionError):
        farm.run_many([Unit(name, "x", name) for name in ("stop", *links)], work)
    return time.monotonic() - started[0]


@pytest.mark.slow
def test_boards_are_left_as_they_were(board: Board, tmp_path: Path) -> None:
    folders = prepared(tmp_path, ("a", "b"))
    with contextlib.ExitStack() as stack:
        links: dict[str, Link] = {name: stack.enter_context(contextlib.closing(board.connect())) for name in folders}
        assert stopped_while_waiting(links, folders) < 10
    assert not any(runs(folder) for folder in folders.values())
    assert [path.name for path in board.base.iterdir()] == ["cache"]


def test_only_threads_are_told_and_each_once() -> None:
    told: list[str] = []

    def ask() -> None:
        for _ in range(3):
            try:
                interruption.check()
            except KeyboardInterrupt:
                told.append("told")

    ask()
    with interruption.asked():
        ask()
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ask()
    assert told == ["told", "told"]


def test_what_ended_so_can_run_again(tmp_path: Path) -> None:
    folders = prepared(tmp_path, ("a",))
    link = local.connect("", {"runner": "native"})
    assert stopped_while_waiting({"a": link}, folders) < 5
    job, result = shell_runner.make(tmp_path / "next", shell="/bin/sh")
    (job / "runner").chmod(0o755)
    farm.run_many([Unit("a", "x", "a"), Unit("b", "x", "b")], lambda unit: unit.name == "b" or link.execute(job, result, 20))
    assert shell_runner.files(result) == shell_runner.expected()
