"""Take a model along its route of converters, comparing every hop with the float source, so that a bad conversion is caught and named there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from edgekit import converters, formats, parity
from edgekit.errors import ConversionError
from edgekit.formats import Model, Session
from edgekit.parity import OutputParity
from edgekit.target import Tolerance
from edgekit.tensors import Array, Arrays

Progress = Callable[[int, int, str], None]


def convert(
    source: Model, reference: Session, accepts: Sequence[str], samples: Sequence[Arrays], tolerance: Tolerance, work: Path, progress: Progress
) -> tuple[Model, tuple[str, ...]]:
    """The model in a format of `accepts`, and the names of the hops it took (none when it already is in one).

    Raises `ConversionError` when a hop fails or computes something else than the source.
    """
    route = converters.route(source.format, accepts)
    if not route:
        return source, ()
    expected = run(reference, samples)
    model, names = source, []
    for number, converter in enumerate(route):
        name = f"{model.format} → {converter.RESULT}"
        progress(number, len(route), f"converting {name}")
        folder = work / f"hop-{number}"
        folder.mkdir()
        model = converter.convert(model, folder)
        _check(name, expected, run(formats.session(model), samples), tolerance)
        names.append(name)
    return model, tuple(names)


def run(session: Session, samples: Sequence[Arrays]) -> list[dict[str, Array]]:
    """Outputs of every sample."""
    return [session.run(sample) for sample in samples]


def compare(expected: Sequence[Arrays], found: Sequence[Arrays]) -> tuple[OutputParity, ...]:
    """One parity a output, over all samples, in real values."""
    return tuple(parity.compare(name, [sample[name] for sample in expected], [sample[name] for sample in found]) for name in expected[0])


def _check(hop: str, expected: Sequence[Arrays], found: Sequence[Arrays], tolerance: Tolerance) -> None:
    if missing := expected[0].keys() - found[0].keys():
        raise ConversionError(f"{hop}: the output {sorted(missing)[0]!r} was lost")
    for errors in parity.judge(compare(expected, found), tolerance):
        if errors.severity == "error":
            raise ConversionError(f"{hop}: {errors.message}", errors.hint or "the converter computes something else than the source model; try another route or version")
