"""The command line: words, options and exit codes. Each command's module imports its recipe only when it runs."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import click

from edgekit.cli import embed, encoding, ending, inventory, lab, package, view
from edgekit.cli.output import fail
from edgekit.errors import EdgekitError, UsageError

COMMANDS = (
    package.package,
    lab.test,
    view.inspect,
    lab.compare,
    lab.drift,
    embed.embed,
    inventory.targets,
    inventory.devices,
    inventory.farm,
    inventory.tools,
    inventory.doctor,
)


_HELP = """Package a trained model for one kind of edge device within a byte budget, and prove it there against the desktop reference.

\b
edgekit package model.pt2 --target android-arm64 --max-size 25MB --calibration photos/
edgekit test model-android-arm64.edgekit --device virtual:android-arm64

Exit codes: 0 passed, 1 checked and out of bounds, 2 bad option, 3 a package is missing, 4 the model cannot be converted, 5 the device could
not be used, 6 the runner failed, 7 corrupt or newer bundle, 8 a plug-in would not load, 70 a fault of edgekit itself; 128 + N stopped by
signal N.
"""


class _Commands(click.Group):
    """Commands in the order a newcomer needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Commands, help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="edgekit")
def edgekit() -> None:
    """The program."""


for _command in COMMANDS:
    edgekit.add_command(_command)


def _refused(error: click.ClickException, arguments: list[str] | None) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return error.exit_code
    return fail(UsageError(error.format_message(), f"see '{context.command_path} --help'" if context else None), arguments)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    if arguments is None:
        encoding.speak_utf8()
    ending.prepare()
    try:
        code = _run(arguments)
    except BrokenPipeError:
        code = ending.PIPE_CLOSED
    except OSError as error:
        code = fail(ending.unwritable(error), [])
    gc.freeze()  # nothing outlives the process: looking for garbage among a framework's objects at its end would take seconds
    sys.exit(ending.flushed(code))


def _run(arguments: list[str] | None) -> int:
    """Run a command: its exit code, or that of the error that it ended with."""
    try:
        encoding.check(sys.argv[1:] if arguments is None else arguments)
        code: Any = edgekit.main(arguments, standalone_mode=False, color=False if os.environ.get("NO_COLOR") else None)
    except EdgekitError as error:
        return fail(error, arguments)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        return _refused(error, arguments)
    except (KeyboardInterrupt, click.Abort) as error:
        return ending.stopped(error)
    except SystemExit:  # click's answer to a closed pipe
        return ending.PIPE_CLOSED
    except OSError as error:
        return fail(ending.unwritable(error), arguments)
    except Exception as error:
        return ending.fault(error)
    return code if isinstance(code, int) else 0
