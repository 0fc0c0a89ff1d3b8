"""What all commands share in talking to people and machines: stdout is data, stderr is talk."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from edgekit.errors import EdgekitError

Progress = Callable[[int, int, str], None]

json_option = click.option(
    "--json",
    "json_to",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write one JSON document to FILE, or to stdout (and nothing else there).",
)


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


def console(*, stderr: bool = False) -> Any:
    """A rich console; plain when the stream is no terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else 120)


def fail(error: EdgekitError, arguments: list[str] | None) -> int:
    """Tell an error: to stderr for people, and as a document to stdout where `--json` asked for one. The exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    click.echo(f"error: {error.message}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)
    if "--json" in words and (words[-1] == "--json" or words[words.index("--json") + 1].startswith("-")):
        write_json({"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint, "exit_code": error.exit_code}}, "-")
    return error.exit_code


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """A progress line on stderr, shown on a terminal only. Yields `report(done, of, what)`; `of` 0 means that the end is unknown."""
    if not sys.stderr.isatty():
        yield lambda done, of, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, of, what: bar.update(task, description=what, completed=done, total=of or None)


def width() -> int:
    """Columns of the terminal, or 100 where there is none."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100
