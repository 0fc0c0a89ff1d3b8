"""`edgekit package`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgekit import decimals
from edgekit.cli import options, output
from edgekit.errors import UsageError

PRECISIONS = "auto, fp32, fp16, w8, w8-dynamic, w8a8, w8a16 (a target may have more: 'edgekit targets NAME')"

INPUT_HELP = "Shape of an input; needed where the model leaves it open. Core ML: 1x3x224x224,1x3x320x320 for several."


def _decibels(text: str) -> float:
    try:
        return decimals.number(text)
    except ValueError:  # nothing is below a bound that is no number
        raise UsageError(f"--min-sqnr: {text!r} is not a number of decibels", "for example 25") from None


def _bytes(size: str) -> int:
    from edgekit.budget import parse_size

    return parse_size(size)


_SECTIONS = {
    "What for": ("target", "board", "precision", "min_sqnr_db", "prefer", "rounding", "ranges"),
    "Byte limits": ("max_total_bytes", "max_model_bytes", "max_flash_bytes", "max_sram_bytes", "size_of", "runtime_aar"),
    "Inputs and data": ("inputs", "calibration", "preprocess", "io"),
    "Result": ("out", "name", "rebuild", "json_to"),
}

_EXAMPLES_PACKAGE = options.examples(
    "edgekit package model.pt2 --target android-arm64 --max-size 25MB --calibration photos/ --preprocess resize=256,crop=224",
    "edgekit package model.tflite --target mcu-cortex-m4 --board nrf52840 --calibration samples.npz",
    "edgekit package my_package.models:net --target ios-coreml --precision fp16",
)


@click.command(cls=options.Sectioned, sections=_SECTIONS, epilog=_EXAMPLES_PACKAGE, short_help="Turn a model into a verified bundle for one target.")
@click.argument("model")
@click.option("--target", "-t", required=True, metavar="T", help="Target profile ('edgekit targets'), or a ./profile.toml.")
@click.option(
    "--max-size",
    "max_total_bytes",
    type=_bytes,
    metavar="SIZE",
    help="Ceiling for model + runtime + generated code, e.g. 25MB (MB = 10^6, MiB = 2^20).",
)
@click.option("--max-model-size", "max_model_bytes", type=_bytes, metavar="SIZE", help="Ceiling for the artifact's file alone, as installed.")
@click.option("--board", default="", metavar="B", help="Board of a microcontroller target: its flash and SRAM are the limits ('edgekit devices').")
@click.option("--max-flash", "max_flash_bytes", type=_bytes, metavar="SIZE", help="Ceiling for code and weights on a microcontroller, e.g. 512KB.")
@click.option("--max-sram", "max_sram_bytes", type=_bytes, metavar="SIZE", help="Ceiling for arena, variables and stack there, e.g. 128KB.")
@click.option("--size-of", type=click.Choice(["installed", "download"]), default="installed", show_default=True, help="Which size --max-size means.")
@click.option("--precision", "-p", default="auto", show_default=True, metavar="P", help=PRECISIONS + ".")
@click.option(
    "--rounding",
    type=click.Choice(["nearest", "bias", "second-order"]),
    default="second-order",
    show_default=True,
    help="How 8-bit weights are rounded.",
)
@click.option(
    "--ranges",
    type=click.Choice(["auto", "minmax", "percentile", "mse", "entropy"]),
    default="auto",
    show_default=True,
    help="How ranges of 8-bit activations are chosen.",
)
@click.option("--prefer", type=click.Choice(["fidelity", "size"]), default="fidelity", show_default=True, help="What 'auto' takes within the limits.")
@click.option("--min-sqnr", "min_sqnr_db", type=_decibels, metavar="DB", help="Fidelity to demand, instead of the profile's tolerance.")
@click.option(
    "--io",
    type=click.Choice(["float32", "int8", "image"]),
    default="float32",
    show_default=True,
    help="What crosses the artifact's edge: floats, an integer model's own integers, or an image whose pixels --preprocess describes (Core ML).",
)
@click.option("--calibration", "-c", metavar="DATA", help="Folder of images or .npy/.npz, one .npz, or package.module:function.")
@click.option("--preprocess", metavar="SPEC", help="How images become inputs: resize=256,crop=224,mean=0.5:0.5:0.5,... or a .toml file.")
@click.option("--input", "inputs", multiple=True, metavar="NAME=1x3x224x224", help=INPUT_HELP)
@click.option("--name", default="", metavar="NAME", help="Name of the bundle; default: the model's.")
@click.option("--out", "-o", type=click.Path(path_type=Path), default=Path(), help="Folder (or .edgekit file) to write to.  [default: .]")
@click.option(
    "--runtime-aar",
    type=options.EXISTING_FILE,
    metavar="FILE",
    help="Measure the runtime's size in this AAR or .so.",
)
@click.option("--rebuild", is_flag=True, help="Build even when nothing has changed.")
@options.json_option
def package(model: str, target: str, json_to: str | None, inputs: tuple[str, ...], preprocess: str | None, **values: Any) -> int:
    """Turn MODEL into a verified, size-budgeted bundle for one target.

    MODEL is a file (.pt2, TorchScript .pt, .keras, .h5, .onnx, .tflite), an .mlpackage, a SavedModel folder, or package.module:function;
    FOLDER#SIGNATURE and FILE.tflite#SIGNATURE name one signature of several. Exits 1 when a limit or the fidelity cannot be met: the report
    then says by how much.
    """
    from edgekit import packager
    from edgekit.budget import Limits
    from edgekit.cli import package_view
    from edgekit.preprocess import parse as parse_preprocess

    limits = Limits(**{name: values.pop(name) for name in Limits.__struct_fields__})  # parameters are called as the fields they fill
    preprocessing = parse_preprocess(preprocess) if preprocess else None
    asked = packager.Options(inputs=shapes(inputs), others=more_shapes(inputs), preprocess=preprocessing, limits=limits, **values)
    output.check_writable(json_to)
    with output.progress() as report:
        outcome = packager.package(model, target, asked, report)
    if json_to:
        output.write_json(package_view.document(outcome), json_to)
    if json_to != "-":
        package_view.show(outcome)
    return 0 if outcome.passed else 1


def shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes of `--input NAME=1x3x224x224`, the first of each where there are several. Raises `UsageError`."""
    return {name: found[0] for name, found in map(_shapes, texts)}


def more_shapes(texts: tuple[str, ...]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The other shapes of `--input NAME=1x3x224x224,1x3x320x320`. Raises `UsageError` when inputs have several, but not as many."""
    found = {name: shapes[1:] for name, shapes in map(_shapes, texts) if len(shapes) > 1}
    if len({len(others) for others in found.values()}) > 1:
        counts = ", ".join(f"{name} {len(others) + 1}" for name, others in found.items())
        raise UsageError(f"--input: as many shapes for each input, not {counts}", "the first of one belongs to the first of the others")
    return found


def _shapes(text: str) -> tuple[str, tuple[tuple[int, ...], ...]]:
    name, separator, sizes = text.rpartition("=")
    try:
        found = tuple(tuple(decimals.whole(size) for size in shape.split("x")) for shape in sizes.lower().split(","))
    except ValueError:
        found = ()
    if not separator or not name or not found or min(map(min, found)) < 1 or len({len(shape) for shape in found}) > 1:
        raise UsageError(f"--input {text}: not NAME=SIZExSIZE", "for example --input image=1x3x224x224")
    return name, found
