"""`edgekit embed`."""

from __future__ import annotations

from pathlib import Path

import click

from edgekit.cli import options, output


@click.command(
    epilog=options.examples("edgekit embed net-android-arm64.edgekit --out classifier --name com.example.models.Classifier"),
    short_help="Write a library around a bundle's model, for an app or firmware.",
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--out", "-o", required=True, type=click.Path(path_type=Path), help="Folder to write; one that 'embed' wrote earlier is replaced.")
@click.option("--name", default="", metavar="NAME", help="What the code calls the model.  [default: the writer's choice]")
@options.json_option
def embed(bundle: Path, out: Path, name: str, json_to: str | None) -> int:
    """Write code with a typed interface around the model of BUNDLE into the folder --out.

    For microcontrollers: a C library with build files for CMake, Zephyr, Arduino and ESP-IDF. For Android: a Gradle module with a Kotlin class, and
    an AAR when the tool kotlin is installed; NAME is the class, com.example.models.Classifier. For Core ML: a Swift package; NAME is the class.
    """
    import msgspec

    from edgekit import embed as recipe

    output.check_writable(json_to)
    library = recipe.write(bundle, out, name)
    if json_to:
        output.write_json(msgspec.to_builtins(library), json_to)
    if json_to != "-":
        click.echo(library.folder)
    for note in library.notes:
        click.echo(f"note: {note}", err=True)
    return 0
