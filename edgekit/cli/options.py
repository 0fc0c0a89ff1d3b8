"""Options that several commands share, and help that lists many options by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

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
threads = click.option("--threads", default=4, show_default=True, type=click.IntRange(1), metavar="N", help="CPU threads.")
accelerator = click.option("--accelerator", default="", metavar="A", help="Accelerator instead of the target's: cpu, xnnpack, nnapi, gpu, ...")
runtime = click.option("--runtime", "runtime_library", type=EXISTING_FILE, metavar="FILE", help="Runtime library for the device (.so, or an AAR).")


def _share(percent: str | float) -> float:
    return float(percent) / 100


effect = click.option("--effect", default=5.0, show_default=True, type=_share, metavar="PERCENT", help="Smallest latency change that counts.")


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
