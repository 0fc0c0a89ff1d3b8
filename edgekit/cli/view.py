"""`edgekit inspect`: signature, operators, MACs, bytes; a verdict per operator for a target."""

from __future__ import annotations

from pathlib import Path

import click

from edgekit.cli import options, output
from edgekit.cli.package import shapes

_EXAMPLES_INSPECT = options.examples(
    "edgekit inspect model.onnx --target hexagon-v75",
    "edgekit inspect net-android-arm64.edgekit --operators",
)


@click.command(epilog=_EXAMPLES_INSPECT, short_help="Signature, operators and bytes of a model or bundle; verdicts for a target.")
@click.argument("model")
@click.option("--target", "-t", metavar="T", help="Judge every operator for this target; for a bundle its own is the default.")
@click.option("--input", "inputs", multiple=True, metavar="NAME=1x3x224x224", help="Shape of an input; needed where the model leaves it open.")
@click.option("--operators", is_flag=True, help="List every operator, not the summary alone.")
@options.json_option
def inspect(model: str, target: str | None, inputs: tuple[str, ...], operators: bool, json_to: str | None) -> int:
    """Show what is inside MODEL, a model or an .edgekit bundle. Exits 1 when an operator is unsupported."""
    from edgekit.cli import inspect_view

    bundled = Path(model).suffix == ".edgekit"
    found = inspect_view.of_bundle(Path(model), target) if bundled else inspect_view.of_model(model, shapes(inputs), target)
    if json_to:
        output.write_json(found, json_to)
    if json_to != "-":
        inspect_view.show(found, operators=operators)
    return int(any(verdict.status == "unsupported" for verdict in found.verdicts))
