"""Fidelity at equal bytes beside the stock quantizer, over the zoo's float models; writes the table of docs/quantization.md.

Both sides get the same float .tflite and the same calibration samples; both files run in the stock interpreter on samples that neither has seen.
Run `python benchmarks/bench_quantize.py [MODEL ...]`. Rows are kept in `--rows FILE` as they are measured, so that models may be measured one
by one; `--document` rewrites the table of the document from that file.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from edgekit import converters, formats, hops, parity, target
from edgekit.backends import Candidate, Context, litert
from edgekit.errors import ConversionError
from edgekit.formats import Model, tflite
from edgekit.formats._quiet import quiet
from edgekit.tensors import Array, Arrays
from tests.zoo import table

CALIBRATION, HELD_OUT = 64, 32
PRECISIONS = ("w8", "w8-dynamic", "w8a8", "w8a16")
BEGIN, END = "<!-- table: benchmarks/bench_quantize.py --document -->", "<!-- end of table -->"
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "quantization.md"


@dataclasses.dataclass(frozen=True)
class Row:
    """One model in one precision: bytes and SQNR (dB, worst output) of the stock quantizer and of edgekit; None where it refused."""

    model: str
    precision: str
    stock: tuple[int, float] | None
    ours: tuple[int, float] | None

    @property
    def gain_db(self) -> float | None:
        """Ours over stock."""
        return self.ours[1] - self.stock[1] if self.ours and self.stock else None


def main(arguments: Sequence[str]) -> None:
    """Print a line a model and precision, and keep it; or write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=table.LITERT_FLOAT)
    parser.add_argument("--rows", type=Path, default=Path("bench_quantize.jsonl"))
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS)
    parser.add_argument("--document", action="store_true")
    options = parser.parse_args(arguments)
    if options.document:
        DOCUMENT.write_text(document(read(options.rows), DOCUMENT.read_text("utf-8")), "utf-8")
        return
    for name in options.models:
        start = time.monotonic()
        for row in measure(name, options.precisions):
            with options.rows.open("a", encoding="utf-8") as kept:
                kept.write(json.dumps(dataclasses.asdict(row)) + "\n")
            print(line(row), flush=True)
        print(f"  {name}: {time.monotonic() - start:.0f} s", flush=True)


def read(path: Path) -> list[Row]:
    """The rows of a file, the last of each model and precision, in the order of the table."""
    found = {}
    for text in path.read_text("utf-8").splitlines():
        values = json.loads(text)
        sides = {side: tuple(values[side]) if values[side] else None for side in ("stock", "ours")}
        found[values["model"], values["precision"]] = Row(values["model"], values["precision"], **sides)
    return [found[key] for key in itertools.product(table.LITERT_FLOAT, PRECISIONS) if key in found]


def measure(name: str, precisions: Sequence[str]) -> Iterator[Row]:
    """One zoo model in these precisions."""
    row = table.rows()[name]
    calibration, held_out = split(row.samples(CALIBRATION, 1)), split(row.samples(HELD_OUT, 7))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        source = formats.open(row.reference, row.inputs)
        for number, converter in enumerate(converters.route(source.format, ("tflite",))):
            (work / str(number)).mkdir()
            source = converter.convert(source, work / str(number))
        assert source.path is not None
        plain = tflite.open(str(tflite.to_float(source.path, work / "float.tflite")), {})
        expected = hops.run(tflite.session(plain), plain.signature, held_out)
        (work / "build").mkdir()
        build = litert.prepare(source, Context(target.load("android-arm64"), calibration, work / "build"))
        for precision in precisions:
            yield Row(name, precision, stock(plain, precision, calibration, held_out, expected, work), ours(build, precision, held_out, expected))


def split(stacked: Arrays) -> list[dict[str, Array]]:
    """One dict a sample."""
    count = len(next(iter(stacked.values())))
    return [{key: array[i] for key, array in stacked.items()} for i in range(count)]


def ours(build: object, precision: str, held_out: Sequence[Arrays], expected: Sequence[Arrays]) -> tuple[int, float] | None:
    """Build with edgekit and judge."""
    try:
        artifact = build(Candidate(precision))  # type: ignore[operator]
    except ConversionError as error:
        print(f"  refused: {error.message}")
        return None
    return artifact.path.stat().st_size, fidelity(artifact.path, held_out, expected)


def stock(
    model: Model, precision: str, calibration: Sequence[Arrays], held_out: Sequence[Arrays], expected: Sequence[Arrays], work: Path
) -> tuple[int, float] | None:
    """Build with ai-edge-quantizer's own recipe and calibration, as its documentation says, and judge."""
    from ai_edge_quantizer import quantizer, recipe

    recipes = {
        "w8": recipe.weight_only_wi8_afp32,
        "w8-dynamic": recipe.dynamic_wi8_afp32,
        "w8a8": recipe.static_wi8_ai8,
        "w8a16": recipe.static_wi8_ai16,
    }
    out = work / f"stock-{precision}.tflite"
    try:
        with quiet():
            tool = quantizer.Quantizer(str(model.path), recipes[precision]())
            data = {next(iter(tflite_signatures(model))): [dict(sample) for sample in calibration]}
            tool.quantize(tool.calibrate(data) if tool.need_calibration else None).export_model(str(out), overwrite=True)
        return out.stat().st_size, fidelity(out, held_out, expected)
    except Exception as error:  # whatever the tool raises is its own failure
        print(f"  stock {precision} failed: {error}")
        return None


def tflite_signatures(model: Model) -> dict[str, object]:
    """The file's signatures by key."""
    from ai_edge_litert.interpreter import Interpreter

    return dict(Interpreter(str(model.path)).get_signature_list())


def fidelity(path: Path, held_out: Sequence[Arrays], expected: Sequence[Arrays]) -> float:
    """SQNR in dB of the worst output over all held-out samples; 200 when exact, 0 when broken."""
    model = tflite.open(str(path), {})
    found = hops.run(tflite.session(model), model.signature, held_out)
    compared = [
        parity.compare(spec.name, [e[spec.name] for e in expected], [f[spec.name] for f in found], other_spec=spec)
        for spec in model.signature.outputs
    ]
    if any(c.mismatch or c.non_finite for c in compared):
        return 0.0
    return min((c.sqnr_db for c in compared if c.sqnr_db is not None), default=200.0)


def line(row: Row) -> str:
    """One row for a terminal."""
    cells = [f"{side[0] / 1e6:.3f} MB {side[1]:.1f} dB" if side else "refused" for side in (row.stock, row.ours)]
    gain = f"{row.gain_db:+.1f} dB" if row.gain_db is not None else ""
    return f"{row.model:<28} {row.precision:<10} stock {cells[0]:<20} edgekit {cells[1]:<20} {gain}"


def document(rows: Sequence[Row], text: str) -> str:
    """docs/quantization.md with its table, and the sentence above it, of these rows."""
    gains = [row.gain_db for row in rows if row.gain_db is not None]
    lines = [
        f"Median gain {statistics.median(gains):+.1f} dB over {len(gains)} rows; smallest {min(gains):+.1f} dB.",
        "",
        "| model | precision | stock bytes | stock dB | edgekit bytes | edgekit dB | gain |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        sides = [(f"{side[0]:,}", f"{side[1]:.1f}") if side else ("refused", "") for side in (row.stock, row.ours)]
        gain = f"{row.gain_db:+.1f}" if row.gain_db is not None else ""
        lines.append(f"| {row.model} | {row.precision} | {' | '.join((*sides[0], *sides[1]))} | {gain} |")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    main(sys.argv[1:])
