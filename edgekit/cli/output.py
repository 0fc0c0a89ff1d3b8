"""What all commands share in talking to people and machines: stdout is data, stderr is talk."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from edgekit.errors import EdgekitError
from edgekit.progress import Progress, silent

_BAR = 24


def write_json(document: Any, to: str) -> None:
    """Write a document as JSON to a file, complete or not at all, or to stdout for `-`."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=1).decode()
    if to == "-":
        click.echo(text)
        return
    write_text(Path(to), text + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file, complete or not at all."""
    from edgekit.bundle import replacing

    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")


def check_writable(place: Path | str | None) -> None:
    """Raise `UsageError` before the work when its result could not be written to `place` after it; `-` is stdout."""
    if place and place != "-":
        from edgekit import bundle

        bundle.check_writable(Path(place))


def say(text: str, *, err: bool = False, **style: Any) -> None:
    """Print a line. Control characters are spelled out: what models, bundles and devices say must not steer a terminal."""
    from edgekit.report.wording import printable

    click.secho(printable(text), err=err, **style)


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print a table whose first row is its header; lines are as long as they need to be where there is no terminal."""
    from edgekit.report import table as tables
    from edgekit.report.wording import printable

    header, *lines = tables.render([[printable(cell) for cell in row] for row in rows], right=right, width=width() if sys.stdout.isatty() else 10_000)
    click.secho(header, dim=True)
    for line in lines:
        click.echo(line)


def fail(error: EdgekitError, arguments: list[str] | None) -> int:
    """Tell an error: to stderr for people, and as a document to stdout where `--json` asked for one. The exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    say(f"error: {error.message}", err=True)
    if error.hint:
        say(f"hint: {error.hint}", err=True)
    if "--json" in words and (words[-1] == "--json" or words[words.index("--json") + 1].startswith("-")):
        write_json({"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint, "exit_code": error.exit_code}}, "-")
    return error.exit_code


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """A progress line on stderr, shown on a terminal only. Yields `report(done, of, what)`; `of` 0 means that the end is unknown."""
    if not sys.stderr.isatty():
        yield silent
        return
    state = {"line": "starting"}

    def report(done: int, of: int, what: str) -> None:
        filled = round(_BAR * done / of) if of else 0
        state["line"] = f"{what}  {'━' * filled}{'─' * (_BAR - filled)}" if of else what

    with _ticking(lambda: state["line"]):
        yield report


@contextlib.contextmanager
def _ticking(line: Callable[[], str]) -> Iterator[None]:
    """Show `line()` and the time that has passed, anew every tenth of a second: long steps report nothing in between."""
    start, stopped = time.monotonic(), threading.Event()
    stream = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8", errors="replace")  # compilers are kept off fd 2

    def show() -> None:
        for mark in itertools.cycle("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"):
            minutes, seconds = divmod(int(time.monotonic() - start), 60)
            stream.write(f"\r\x1b[K{mark} {line()}  {minutes}:{seconds:02}"[: width() + 4])
            stream.flush()
            if stopped.wait(0.1):
                break
        stream.write("\r\x1b[K")
        stream.close()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def width() -> int:
    """Columns of the terminal, or 100 where there is none."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100
