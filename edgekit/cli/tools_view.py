"""What `edgekit tools` and `edgekit doctor` print and do."""

from __future__ import annotations

import click

from edgekit import runtimes, tools
from edgekit.cli import output
from edgekit.errors import UsageError, close_match


def listing() -> None:
    """Print isolated tools and runtime libraries, installed or not."""
    from edgekit import doctor

    rows = [check for check in doctor.checks() if check.name.startswith("isolated tool") or " library for " in check.name]
    for row in rows:
        click.echo(f"{'installed' if row.ok else 'absent':<10} {row.name}  {row.found if row.ok else row.fix}")


def install(name: str) -> int:
    """Install an isolated tool, one runtime library (`runtime:litert-linux-aarch64`), or all of those (`runtimes`)."""
    known = {f"runtime:{runtime}-{platform}": (runtime, platform) for runtime, platform in runtimes.INSTALLABLE}
    wanted = list(known) if name == "runtimes" else [name]
    for item in wanted:
        with output.progress() as report:
            report(0, 0, f"installing {item}")
            if item in known:
                runtimes.install(*known[item])
            elif item in tools.TOOLS:
                tools.install(item)
            else:
                raise UsageError(f"there is no tool {item!r}", close_match(item, [*tools.TOOLS, *known, "runtimes"]))
        click.echo(f"{item} is ready", err=True)
    return 0


def doctor(json_to: str | None) -> int:
    """Print what is there and what is missing; the exit code is 0 either way: nobody needs everything."""
    from edgekit import doctor as diagnosis

    checks = diagnosis.checks()
    if json_to:
        output.write_json(checks, json_to)
        return 0
    width = max(len(check.name) for check in checks)
    for check in checks:
        click.echo(f"{'ok' if check.ok else '--'}  {check.name:<{width}}  {check.found}")
        if not check.ok and check.fix:
            click.echo(f"    {'':<{width}}  {check.fix}")
    return 0
