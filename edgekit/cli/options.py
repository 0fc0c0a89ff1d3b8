"""Options that several commands share, and help that lists many options by section."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from edgekit import decimals


class Whole(click.IntRange):
    """A whole number within bounds, in the digits 0 to 9."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what only Python takes for a number."""
        return super().convert(_plain(decimals.whole, self, value, param, ctx), param, ctx)


class Number(click.FloatRange):
    """A finite number within bounds, in the digits 0 to 9."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what only Python takes for a number."""
        return super().convert(_plain(decimals.number, self, value, param, ctx), param, ctx)


def _plain(read: Callable[[str], float], kind: click.ParamType[Any], value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    try:
        return read(value) if isinstance(value, str) else value
    except ValueError as error:
        kind.fail(f"{error}.", param, ctx)


SECONDS, SOME_SECONDS = Number(0, 1e6), Number(0, 1e6, min_open=True)
"""Times that can be asked for: up to eleven days, with and without none."""

FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)

json_option = click.option(
    "--json",
    "json_to",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write one JSON document to FILE, or to stdout (and nothing else there).",
)
farm = click.option("--farm", "farm_file", type=FILE, metavar="FILE", help="Farm file; default: farm.toml here, or the user's own.")
threads = click.option("--threads", default=4, show_default=True, type=Whole(1), metavar="N", help="CPU threads.")
accelerator = click.option("--accelerator", default="", metavar="A", help="Accelerator instead of the target's: cpu, xnnpack, nnapi, gpu, ...")
runtime = click.option("--runtime", "runtime_library", type=EXISTING_FILE, metavar="FILE", help="Runtime library for the device (.so, or an AAR).")


class _Share(Number):
    """Percent, as a share of one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """From what was typed alone: a default is in percent as well."""
        return super().convert(value, param, ctx) / 100


effect = click.option("--effect", default=5.0, show_default=True, type=_Share(0, 1e4), metavar="PERCENT", help="Smallest latency change that counts.")


def examples(*lines: str) -> str:
    """The end of a command's help: lines to type, kept as they are."""
    return "\b\n" + "\n".join(("Examples:", *(f"  {line}" for line in lines)))


class Sectioned(click.Command):
    """A command whose help lists its options by section: title -> names of parameters. Those of no section come last."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        rows = {option.name: row for option in options if (row := option.get_help_record(ctx))}
        for title, names in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([rows.pop(name) for name in names])
        with formatter.section("Other options"):
            formatter.write_dl(list(rows.values()))
